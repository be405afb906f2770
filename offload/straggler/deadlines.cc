#include "offload/straggler/deadlines.h"

#include <algorithm>

namespace longhaul::offload {

Deadlines Deadlines::Fixed(Duration reduce_time, double alpha, Duration transfer) {
  Deadlines fixed;
  fixed.threshold_ = Duration(Saturated(static_cast<double>(reduce_time.count()) * alpha));
  fixed.transfer_ = transfer;
  fixed.hop_ = reduce_time + transfer;
  return fixed;
}

Duration Deadlines::At(uint32_t position) const {
  if (fixed()) {
    return position == 0 ? threshold_ : (position - 1) * hop_ + threshold_ + transfer_;
  }
  if (wait_.count() != 0) return (position == 0 ? Duration(0) : learned_[position - 1].mean()) + wait_;
  const LearnedWait& learned = learned_[position];
  if (learned.samples() < kLeastSamples) return first_;
  const Duration hop = position == 0 ? learned_[1].mean() : learned.mean() / position;
  return learned.End(std::max(hop / 5, least_)) + position * (least_ / 4);
}

void Deadlines::OnArrival(uint32_t position, Duration wait) { learned_[position].Learn(wait); }

void Deadlines::OnTimeout(uint32_t position) { learned_[position].Learn(At(position)); }

}  // namespace longhaul::offload
