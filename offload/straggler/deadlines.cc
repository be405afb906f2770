#include "offload/straggler/deadlines.h"

namespace longhaul::offload {

Deadlines Deadlines::Fixed(Duration reduce_time, double alpha, Duration transfer) {
  Deadlines fixed;
  fixed.threshold_ = Duration(Saturated(static_cast<double>(reduce_time.count()) * alpha));
  fixed.transfer_ = transfer;
  fixed.hop_ = reduce_time + transfer;
  return fixed;
}

Duration Deadlines::At(uint32_t position) const {
  if (hop_.count() != 0) {
    return position == 0 ? threshold_ : (position - 1) * hop_ + threshold_ + transfer_;
  }
  const LearnedWait& learned = learned_[position];
  if (learned.samples() < kLeastSamples) return first_;
  const Duration hop = position == 0 ? learned_[1].mean() : learned.mean() / position;
  return learned.End(hop / 5);
}

void Deadlines::OnArrival(uint32_t position, Duration wait) { learned_[position].Learn(wait); }

void Deadlines::OnTimeout(uint32_t position) { learned_[position].Learn(At(position)); }

}  // namespace longhaul::offload
