// The engine's buffers: a fixed number of segs, each with data and with what is known of it.
//
// A seg is taken for data that comes before its turn, and released as soon as its content has gone into a
// sum. A reference carries the seg's generation: one that was kept beyond the release finds nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/instant.h"
#include "base/zeroed_array.h"

namespace longhaul::offload {

struct SegRef {
  static constexpr uint16_t kNoIndex = UINT16_MAX;
  uint16_t index = kNoIndex;
  uint16_t generation = 0;

  bool empty() const { return index == kNoIndex; }
  friend bool operator==(const SegRef&, const SegRef&) = default;
};

class SegPool {
 public:
  struct Unit {
    uint8_t intra = 0;  // Header::kReduced, kInvolvesOthers
    bool taken = false;
    uint16_t generation = 0;    // of the reference that is valid
    uint16_t owner = 0;         // slot of the message
    uint32_t length = 0;        // bytes of data
    uint64_t contributors = 0;  // nodes; the low 16 are the inter-node state
    SegRef next;                // of the same seg of the message, by node
    // Of a sum that is on its way as it came:
    uint32_t participants = 0;
    uint32_t missing = 0;
    uint32_t late = 0;
    Instant since;  // the first transmission
    Instant again;  // the next one
    uint8_t target = 0;
    uint8_t tries = 0;
    bool incomplete = false;
    std::byte* data = nullptr;  // seg_bytes, aligned to a cache line

    uint16_t inter() const { return static_cast<uint16_t>(contributors); }
  };

  SegPool(uint32_t units, uint32_t seg_bytes);

  // What the data is waiting for says how much has to stay free for others.
  enum class Turn : uint8_t {
    kNow,         // it goes on as soon as the rest of its seg comes
    kAfterRanks,  // the ranks here have not posted: a quarter of the pool stays free
    kOutOfOrder,  // others come first, and need units of their own: half of the pool stays free. Also for
                  // what goes back when another node has room for it
  };
  // None: too few are free, or `owner` holds as many as are free (a third, out of order): no message starves
  // the others, and none itself.
  std::optional<SegRef> Take(uint16_t owner, Turn turn = Turn::kNow);
  bool HasRoom(uint16_t owner, Turn turn) const;
  // Null: released meanwhile.
  Unit* Find(SegRef ref);
  // Nothing happens for a reference that is released.
  void Release(SegRef ref);
  void ReleaseAllOf(uint16_t owner);

  uint32_t size() const { return static_cast<uint32_t>(units_.size()); }
  uint32_t in_use() const { return size() - static_cast<uint32_t>(free_.size()); }
  uint32_t most() const { return most_; }
  uint32_t held_by(uint16_t owner) const { return held_[owner]; }

 private:
  ZeroedArray<std::byte> memory_;
  std::vector<Unit> units_;
  std::vector<uint16_t> free_;
  std::vector<uint32_t> held_;
  uint32_t most_ = 0;
};

}  // namespace longhaul::offload
