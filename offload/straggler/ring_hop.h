// What one node does about one chunk of a ring: what it waits for, when it gives up, what it adds, whom it
// sends to.
//
//   position 0 -> 1 -> ... -> owner        each adds its own part to the sum that comes and sends it on
//
// It holds sets of contributors and times, no data and no clock: engine and simulator (offload/ringsim) drive
// the same object. A policy decides only when a node goes on without others and which way late sums take;
// sums are added only when their sets are disjoint, and the owner is done with the parts of all and not
// before. So each part is in the result once, whatever the policy, and no message but the data has to arrive
// for that.
//
//   off          waits for all before it
//   seed_skip    the paper's rule: a node that hears nothing from the one before sends its own part on; one that takes longer
//                than alpha T skips its successor. Right for one slow node among four. Beyond that a sum can come to a node that
//                has no rule for it (Arrival::kNoRule) and the chunk never ends: for comparison, not for use.
//   cascade      every node has a deadline; a late sum goes to the first node that still waits, and a node that
//                has sent already passes it on as it is
//   self_skip    and a node whose own part is late goes on without it, says so, and sends the part to the owner
//   leaf_demote  and a node that is late again and again gives its positions up (demotion.h)
//
// Not thread-safe.
#pragma once

#include <cstdint>

#include "base/instant.h"
#include "offload/straggler/deadlines.h"
#include "offload/straggler/ring_order.h"

namespace longhaul::offload {

enum class RingPolicy : uint8_t { kOff = 0, kSeedSkip = 1, kCascade = 2, kSelfSkip = 3, kLeafDemote = 4 };

// What a message says of its sum. An empty set: only that `missing` take another way.
struct Partial {
  Contributors set = 0;
  Contributors missing = 0;  // go to the owner by themselves: no node before it waits for them
};

// What the caller does with what has come.
enum class Arrival : uint8_t {
  kMerge,      // keeps it, to be added to this node's sum
  kPassOn,     // sends it on as it is, to Aim()
  kNotice,     // it has no data
  kDuplicate,  // drops it
  kOverlap,    // refuses it: a bug or a lie of the sender
  kNoRule,     // seed_skip: the sum is lost
};

class RingHop {
 public:
  // `transfer`: of a sum to another node. `order` and `deadlines` outlive this object. REQUIRES: position <
  // order.size.
  RingHop(const RingOrder& order, uint32_t position, RingPolicy policy, Deadlines* deadlines,
          Duration transfer, Instant start);

  // --- events; then ask Due
  Arrival OnOwn(Instant now);
  // `from`: the sender's node.
  Arrival OnPartial(Instant now, uint32_t from, Partial partial);

  // --- what to do next
  // When Due may become true by itself; infinite: only by an event.
  Instant NextTimeout() const;
  // Whether to add up what was merged and send it: once. Never at the owner.
  bool Due(Instant now) const;
  // The sum is being made: what comes from now on is not in it. Returns what it says.
  Partial Begin(Instant now);
  // It is made. Returns the position that it goes to.
  uint32_t Close(Instant now);
  // Position of the node that a late sum goes to.
  uint32_t Aim(Instant now) const;
  // At the owner: the parts of all nodes are in.
  bool Complete() const { return IsOwner() && have_ == order_.All(); }

  // --- questions
  Contributors have() const { return have_; }
  // Who kept this node waiting past its deadline, or said so itself.
  Contributors late() const { return late_; }

 private:
  enum class Phase : uint8_t { kWaiting, kReducing, kSent };
  Contributors Own() const { return Bit(order_.nodes[position_]); }
  bool IsOwner() const { return position_ == order_.owner(); }
  bool HasDeadline() const;
  bool UpstreamIsIn() const { return (order_.Before(position_) & ~missing_ & ~have_) == 0; }
  bool InTimeFor(uint32_t position, Instant now) const;

  const RingOrder& order_;
  uint32_t position_;
  RingPolicy policy_;
  Deadlines* deadlines_;
  Duration transfer_;
  Instant start_;
  Instant deadline_ = Instant::Infinite();
  Phase phase_ = Phase::kWaiting;
  Instant begun_;
  Contributors have_ = 0;     // merged here
  Contributors heard_ = 0;    // merged or passed on
  Contributors missing_ = 0;  // announced
  Contributors late_ = 0;
  bool previous_heard_ = false;
};

}  // namespace longhaul::offload
