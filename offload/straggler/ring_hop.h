// What one node does about one chunk of a ring: what it waits for, when it gives up, what it adds, whom it
// sends to.
//
//   position 0 -> 1 -> ... -> owner        each adds its own part to the sum that comes and sends it on
//
// It holds sets of contributors and times, no data and no clock: engine (offload/engine) and simulator
// (offload/ringsim) drive the same object. A policy decides only when a node goes on without others and which
// way late sums take; sums are added only when their sets are disjoint, and the owner is done with the parts
// of all and not before. So each part is in the result once, whatever the policy, and no message but the data
// has to arrive for that.
//
// A sum goes to one node, ever, unless that one says that it has not taken it: two that have it could each
// add it to a sum, and the owner could take neither of these after the other.
//
//   off          waits for all before it
//   seed_skip    the paper's rule: a node that hears nothing from the one before sends its own part on; one that
//                takes longer than alpha T skips its successor. Right for one slow node among four. Beyond that,
//                with fixed deadlines, a sum can come to a node that has no rule for it (Arrival::kNoRule) and the
//                chunk never ends; with learned ones such a sum is passed on
//   cascade      every node has a deadline; a late sum goes to the first node that still waits, and a node that
//                has sent already passes it on as it is
//   self_skip    and a node whose own part is late goes on without it, says so, and sends the part to the owner
//   leaf_demote  and a node that is late again and again gives its positions up (demotion.h)
//
// Not thread-safe.
#pragma once

#include <cstdint>

#include "base/instant.h"
#include "longhaul/offload.h"
#include "offload/straggler/deadlines.h"
#include "offload/straggler/ring_order.h"

namespace longhaul::offload {

using RingPolicy = StragglerPolicy;

// What a message says of its sum. An empty set: only that the sender has gone on, and `missing` take another
// way.
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
  kNoPlace,    // refuses it: parts that do not come this way
  kNoRule,     // seed_skip: the sum is lost
};

// A node's place in the rings that have one owner.
struct RingPlace {
  RingOrder order = {};
  uint8_t self = 0;       // the node
  uint32_t position = 0;  // its position; of a leaf: order.size
  RingPolicy policy = RingPolicy::kOff;
  Deadlines* deadlines = nullptr;
  Duration transfer{0};  // of a sum to another node

  bool IsLeaf() const { return position == order.size; }
  // To the letter, so that it can get stuck.
  bool FollowsPaper() const { return policy == RingPolicy::kSeedSkip && deadlines->fixed(); }
};

class RingHop {
 public:
  RingHop() = default;
  // `place` and its deadlines outlive this object. REQUIRES: position <= order.size.
  RingHop(const RingPlace* place, Instant start);
  bool opened() const { return place_ != nullptr; }

  // --- events; then ask Due
  Arrival OnOwn(Instant now);
  // `from`: the sender's node. Judge says what is to be done, Accept that it is done; a sum that finds no
  // room is not accepted.
  Arrival OnPartial(Instant now, uint32_t from, Partial partial);
  Arrival Judge(Partial partial) const;
  void Accept(Instant now, uint32_t from, Partial partial);
  // That node has gone on: it adds nothing more. A late sum of `past` went to one behind this node: the two
  // have learned different deadlines.
  void OnGoneOn(uint32_t node, Contributors past);
  // Another node owns the sum: what is here and what comes goes straight to it.
  void GoDirect() { direct_ = true; }

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
  bool Complete() const { return IsOwner() && have_ == order().All(); }

  // --- questions
  const RingOrder& order() const { return place_->order; }
  bool IsOwner() const { return !direct_ && place_->position == order().owner(); }
  bool direct() const { return direct_; }
  Contributors have() const { return have_; }
  // Whether everything that this node waits for is in once `more` is.
  bool UpstreamIsIn(Contributors more = 0) const { return (Upstream() & ~have_ & ~more) == 0; }
  // Who kept this node waiting past its deadline, or said so itself.
  Contributors late() const { return late_; }

 private:
  enum class Phase : uint8_t { kWaiting, kReducing, kSent };
  Contributors Own() const { return Bit(place_->self); }
  Contributors Upstream() const;
  bool HasDeadline() const;
  bool InTimeFor(uint32_t position, Instant now) const;

  const RingPlace* place_ = nullptr;
  Instant start_;
  Instant deadline_ = Instant::Infinite();
  Instant begun_;
  Contributors have_ = 0;     // merged here
  Contributors heard_ = 0;    // merged or passed on
  Contributors missing_ = 0;  // announced
  Contributors late_ = 0;
  Contributors gone_on_ = 0;
  Contributors past_ = 0;  // went past this node
  Phase phase_ = Phase::kWaiting;
  bool previous_heard_ = false;
  bool direct_ = false;
};

}  // namespace longhaul::offload
