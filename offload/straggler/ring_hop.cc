#include "offload/straggler/ring_hop.h"

#include "base/check.h"

namespace longhaul::offload {

RingHop::RingHop(const RingOrder& order, uint32_t position, RingPolicy policy, Deadlines* deadlines,
                 Duration transfer, Instant start)
    : order_(order),
      position_(position),
      policy_(policy),
      deadlines_(deadlines),
      transfer_(transfer),
      start_(start) {
  LH_CHECK(position < order.size);
  if (policy == RingPolicy::kOff || IsOwner()) return;
  deadline_ = start + deadlines->At(position);
}

Arrival RingHop::OnOwn(Instant now) {
  if ((heard_ & Own()) != 0) return Arrival::kDuplicate;
  heard_ |= Own();
  if (position_ == 0) deadlines_->OnArrival(0, now - start_);
  if (phase_ != Phase::kWaiting) return Arrival::kPassOn;
  have_ |= Own();
  return Arrival::kMerge;
}

Arrival RingHop::OnPartial(Instant now, uint32_t from, Partial partial) {
  if (((partial.set | partial.missing) & ~order_.All()) != 0) return Arrival::kOverlap;
  if (position_ > 0 && from == order_.nodes[position_ - 1] && !previous_heard_) {
    previous_heard_ = true;
    if (phase_ == Phase::kWaiting) deadlines_->OnArrival(position_, now - start_);
  }
  missing_ |= partial.missing;
  late_ |= partial.missing;
  if (partial.set == 0) return Arrival::kNotice;
  switch (Meet(heard_, partial.set)) {
    case Meeting::kDuplicate:
      return Arrival::kDuplicate;
    case Meeting::kOverlap:
      return Arrival::kOverlap;
    case Meeting::kDisjoint:
      break;
  }
  heard_ |= partial.set;
  if (phase_ != Phase::kWaiting)
    return policy_ == RingPolicy::kSeedSkip ? Arrival::kNoRule : Arrival::kPassOn;
  have_ |= partial.set;
  return Arrival::kMerge;
}

// The paper's timer is about the node before: whatever comes from it stops it.
bool RingHop::HasDeadline() const { return policy_ != RingPolicy::kSeedSkip || !previous_heard_; }

Instant RingHop::NextTimeout() const {
  return phase_ == Phase::kWaiting && HasDeadline() ? deadline_ : Instant::Infinite();
}

bool RingHop::Due(Instant now) const {
  if (phase_ != Phase::kWaiting || IsOwner()) return false;
  const bool late = HasDeadline() && now >= deadline_;
  if ((have_ & Own()) == 0) return policy_ >= RingPolicy::kSelfSkip && late;
  return UpstreamIsIn() || late;
}

Partial RingHop::Begin(Instant now) {
  phase_ = Phase::kReducing;
  begun_ = now;
  if (!UpstreamIsIn() && !previous_heard_) {
    late_ |= Bit(order_.nodes[position_ - 1]);
    deadlines_->OnTimeout(position_);
  }
  return {have_, missing_ | (Own() & ~have_)};
}

uint32_t RingHop::Close(Instant now) {
  phase_ = Phase::kSent;
  return Aim(now);
}

bool RingHop::InTimeFor(uint32_t position, Instant now) const {
  return now + transfer_ <= start_ + deadlines_->At(position);
}

uint32_t RingHop::Aim(Instant now) const {
  uint32_t to = position_ + 1;
  switch (policy_) {
    case RingPolicy::kOff:
      break;
    case RingPolicy::kSeedSkip:
      if (to < order_.owner() && now - begun_ > deadlines_->threshold()) ++to;
      break;
    case RingPolicy::kCascade:
    case RingPolicy::kSelfSkip:
    case RingPolicy::kLeafDemote:
      while (to < order_.owner() && !InTimeFor(to, now)) ++to;
      break;
  }
  return to;
}

}  // namespace longhaul::offload
