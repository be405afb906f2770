// One message under way: its entry in the control-information store.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/instant.h"
#include "base/zeroed_array.h"
#include "offload/engine/collective.h"
#include "offload/engine/deadline_wheel.h"
#include "offload/engine/seg_pool.h"
#include "offload/straggler/ring_hop.h"

namespace longhaul::offload {

enum class Phase : uint8_t {
  kWaiting,  // for ranks here, or sums from other nodes
  kSent,     // the sum with this node's part is on its way to the owner
  kResult,   // the result is here, and owed to other nodes
  kDone,
};

// A seg of a message of several nodes.
struct Seg {
  static constexpr uint8_t kNoOwner = 255;

  RingHop hop;                // what this node waits for; not opened: the seg has not begun here
  uint32_t contributors = 0;  // nodes whose data is here: held in units, then in the sum
  uint32_t pending = 0;       // nodes that the result is owed to
  uint32_t missing = 0;       // what the sum says of nodes that it does not wait for
  uint32_t late = 0;          // nodes that someone has waited for in vain
  uint32_t refused = 0;       // sums that found no room and went elsewhere: never taken any more
  Instant since;              // the first transmission
  Instant again;              // when the sum is to be sent again
  uint32_t participants = 0;  // ranks in it
  DeadlineWheel::Timer timer = DeadlineWheel::kNone;
  SegRef held;     // units with what came early; also the sum that has no other place
  SegRef passing;  // units with late sums that go on as they are
  Phase phase = Phase::kWaiting;
  uint8_t target = 0;        // of the sum: the next node, or farther on
  uint8_t tries = 0;         // transmissions of what is on its way
  bool local = false;        // all that the ranks here add is there
  bool acked = false;        // the sum is in somewhere
  bool incomplete = false;   // a rank or node that belongs in it is missing
  bool forced = false;       // does not wait any more
  bool aimed = false;        // the target is chosen: for good, unless it says that it has no room
  bool early = false;        // what is held is the result, which came before the ranks here
  bool claimed = false;      // this node has asked for the seg, and has no answer
  uint8_t owner = kNoOwner;  // of the seg, where it is not the one of its route
};

struct Operation {
  // One request of a rank: some segs of the message, and a completion when they are done.
  struct Work {
    uint64_t wr_id = 0;
    uint8_t rank = 0;
    uint32_t first = 0;
    uint32_t end = 0;
    uint32_t left = 0;
    Instant posted;
  };
  struct RankMemory {
    const std::byte* send = nullptr;
    std::byte* receive = nullptr;
    uint32_t send_key = 0;
    uint32_t receive_key = 0;
    Share share;  // of the message that `receive` holds
  };

  Collective what;
  std::vector<RingPlace> places;                // by the seg's owner; made when the first seg begins
  std::array<uint32_t, kMaxNodes> late_segs{};  // results that were waited for, by node
  uint16_t slot = 0;
  uint32_t epoch = 0;  // of the slot: sends of an earlier message are not this one's
  bool live = false;
  bool posted = false;      // by a rank of this node, or the device has none: sums may go on
  bool starved = false;     // something found no unit
  bool incomplete = false;  // a result without all ranks and nodes
  uint8_t stage = 0;        // of the deadline
  uint64_t joined = 0;      // ranks with a request
  // Ranks that are not waited for any more, and whose data is in no later sum.
  uint64_t gone = 0;
  uint64_t dead = 0;           // of those: their memory is not touched
  uint64_t missing_nodes = 0;  // of results, and the dead
  uint64_t seen = 0;           // nodes whose data has come here
  std::array<RankMemory, kMaxRanks> ranks;
  std::vector<uint64_t> missing;  // per seg: ranks whose request is not here
  std::vector<uint64_t> ready;    // bit per seg: nothing missing, not begun
  std::vector<Seg> segs;          // of several nodes
  std::vector<Work> works;
  uint32_t ready_count = 0;
  uint32_t cursor = 0;  // the search for ready segs goes on here
  uint32_t lowest = 0;  // the first seg that is not done
  uint32_t opened = 0;  // segs before it have begun to wait
  uint32_t done = 0;
  std::byte* message = nullptr;    // where sums and results stand; null: in units
  ZeroedArray<std::byte> scratch;  // behind `message` where no rank has memory for it
  Instant begun;
  Instant start;  // of the clocks of segs that begin before a request is here
  Instant heard;  // the last packet
  Instant deadline;
  DeadlineWheel::Timer timer = DeadlineWheel::kNone;

  // Whether a node goes on without a late one.
  bool Skips() const { return !places.empty() && places[what.self].policy != StragglerPolicy::kOff; }
  bool Demotes() const { return !places.empty() && places[what.self].policy == StragglerPolicy::kLeafDemote; }
  bool IsReady(uint32_t sid) const { return (ready[sid / 64] >> sid % 64 & 1) != 0; }
  void SetReady(uint32_t sid) {
    ready[sid / 64] |= uint64_t{1} << sid % 64;
    ++ready_count;
  }
  void ClearReady(uint32_t sid) {
    ready[sid / 64] &= ~(uint64_t{1} << sid % 64);
    --ready_count;
  }
  // Ranks whose data is in this seg, or can go into it.
  uint64_t Present(uint32_t sid) const { return what.senders() & ~missing[sid] & ~gone; }
};

}  // namespace longhaul::offload
