#include "offload/straggler/ring_hop.h"

#include "base/check.h"

namespace longhaul::offload {

RingHop::RingHop(const RingPlace* place, Instant start)
    : place_(place), start_(start), direct_(place->IsLeaf()) {
  LH_CHECK(place->position <= place->order.size);
  if (place->policy == RingPolicy::kOff || direct_ || IsOwner()) return;
  deadline_ = start + place->deadlines->At(place->position);
}

Arrival RingHop::OnOwn(Instant now) {
  if ((heard_ & Own()) != 0) return Arrival::kDuplicate;
  heard_ |= Own();
  if (place_->position == 0 && place_->deadlines != nullptr) place_->deadlines->OnArrival(0, now - start_);
  if (phase_ != Phase::kWaiting) return Arrival::kPassOn;
  have_ |= Own();
  return Arrival::kMerge;
}

Arrival RingHop::OnPartial(Instant now, uint32_t from, Partial partial) {
  const Arrival arrival = Judge(partial);
  if (arrival != Arrival::kDuplicate && arrival != Arrival::kOverlap && arrival != Arrival::kNoPlace) {
    Accept(now, from, partial);
  }
  return arrival;
}

Arrival RingHop::Judge(Partial partial) const {
  // Nodes that do not agree on the leaves send parts of nodes that are behind this one.
  const Contributors ways =
      place_->policy == RingPolicy::kLeafDemote ? order().All() : order().Before(place_->position);
  if (((partial.set & ~ways) | (partial.missing & ~order().All()) | (partial.set & Own())) != 0) {
    return Arrival::kNoPlace;
  }
  if (partial.set == 0) return Arrival::kNotice;
  switch (Meet(heard_, partial.set)) {
    case Meeting::kDuplicate:
      return Arrival::kDuplicate;
    case Meeting::kOverlap:
      return Arrival::kOverlap;
    case Meeting::kDisjoint:
      break;
  }
  if (phase_ == Phase::kWaiting && !direct_) return Arrival::kMerge;
  return place_->FollowsPaper() ? Arrival::kNoRule : Arrival::kPassOn;
}

void RingHop::Accept(Instant now, uint32_t from, Partial partial) {
  const uint32_t position = place_->position;
  if (position > 0 && !place_->IsLeaf() && from == order().nodes[position - 1] && !previous_heard_) {
    previous_heard_ = true;
    if (phase_ == Phase::kWaiting && place_->deadlines != nullptr) {
      place_->deadlines->OnArrival(position, now - start_);
    }
  }
  missing_ |= partial.missing;
  late_ |= partial.missing;
  heard_ |= partial.set;
  if (phase_ == Phase::kWaiting && !direct_) have_ |= partial.set;
}

void RingHop::OnGoneOn(uint32_t node, Contributors past) {
  gone_on_ |= Bit(node);
  past_ |= past;
  if (past != 0) late_ |= Bit(node) & ~Own();
}

// The paper's timer is about the node before: whatever comes from it stops it.
bool RingHop::HasDeadline() const { return !place_->FollowsPaper() || !previous_heard_; }

Instant RingHop::NextTimeout() const {
  return phase_ == Phase::kWaiting && !direct_ && HasDeadline() ? deadline_ : Instant::Infinite();
}

Contributors RingHop::Upstream() const {
  if (direct_) return 0;
  if (IsOwner()) return order().All() & ~Own();
  return order().Before(place_->position) & ~missing_ & ~past_;
}

bool RingHop::Due(Instant now) const {
  if (phase_ != Phase::kWaiting || IsOwner()) return false;
  if (direct_) return have_ != 0;
  const bool late = HasDeadline() && now >= deadline_;
  if ((have_ & Own()) == 0) return place_->policy >= RingPolicy::kSelfSkip && late;
  return UpstreamIsIn() || late;
}

Partial RingHop::Begin(Instant now) {
  phase_ = Phase::kReducing;
  begun_ = now;
  if (!UpstreamIsIn() && !previous_heard_) {
    late_ |= Bit(order().nodes[place_->position - 1]);
    if (place_->deadlines != nullptr) place_->deadlines->OnTimeout(place_->position);
  }
  return {have_, missing_ | (Own() & ~have_)};
}

uint32_t RingHop::Close(Instant now) {
  phase_ = Phase::kSent;
  return Aim(now);
}

bool RingHop::InTimeFor(uint32_t position, Instant now) const {
  if ((gone_on_ & Bit(order().nodes[position])) != 0) return false;
  return now + place_->transfer <= start_ + place_->deadlines->At(position);
}

uint32_t RingHop::Aim(Instant now) const {
  const uint32_t owner = order().owner();
  uint32_t to = direct_ ? owner : place_->position + 1;
  if (to >= owner) return owner;
  switch (place_->policy) {
    case RingPolicy::kOff:
      break;
    case RingPolicy::kSeedSkip: {
      // Where T is not known, a node is slow whose sum the next one has given up.
      const Deadlines& deadlines = *place_->deadlines;
      if (deadlines.fixed() ? now - begun_ > deadlines.threshold() : !InTimeFor(to, now)) ++to;
      break;
    }
    case RingPolicy::kCascade:
    case RingPolicy::kSelfSkip:
    case RingPolicy::kLeafDemote:
      while (to < owner && !InTimeFor(to, now)) ++to;
      break;
  }
  return to;
}

}  // namespace longhaul::offload
