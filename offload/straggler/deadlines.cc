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
  if (hop_.count() != 0) {
    return position == 0 ? threshold_ : (position - 1) * hop_ + threshold_ + transfer_;
  }
  const Learned& learned = learned_[position];
  if (learned.samples < kLeastSamples) return first_;
  const Duration hop = position == 0 ? learned_[1].mean : learned.mean / position;
  return learned.mean + std::max(hop / 5, 4 * learned.deviation);
}

void Deadlines::OnArrival(uint32_t position, Duration wait) { Learn(learned_[position], wait); }

void Deadlines::OnTimeout(uint32_t position) { Learn(learned_[position], At(position)); }

void Deadlines::Learn(Learned& learned, Duration wait) {
  if (learned.samples++ == 0) {
    learned.mean = wait;
    learned.deviation = wait / 2;
    return;
  }
  const Duration off = wait > learned.mean ? wait - learned.mean : learned.mean - wait;
  learned.deviation += (off - learned.deviation) / 4;
  learned.mean += (wait - learned.mean) / 8;
}

}  // namespace longhaul::offload
