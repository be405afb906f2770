// How long something usually takes to come, and how much that varies: EWMA of the mean (gain 1/8) and of the
// mean deviation (gain 1/4), as RFC 6298's round-trip time.
//
// What has not come by a wait's end is learned as that end, so what is learned has a bound: else each such
// wait would make the next one 1.75 times as long, until times overflow.
#pragma once

#include <algorithm>
#include <cstdint>

#include "longhaul/units.h"

namespace longhaul::offload {

class LearnedWait {
 public:
  // Far above any hop in a datacenter, far below any patience of a training step.
  static constexpr Duration kMost = std::chrono::milliseconds(100);

  void Learn(Duration wait) {
    wait = std::min(wait, kMost);
    if (samples_++ == 0) {
      mean_ = wait;
      deviation_ = wait / 2;
      return;
    }
    const Duration off = wait > mean_ ? wait - mean_ : mean_ - wait;
    deviation_ += (off - deviation_) / 4;
    mean_ += (wait - mean_) / 8;
  }

  uint32_t samples() const { return samples_; }
  Duration mean() const { return mean_; }
  // The mean and a slack: four deviations, and `least` at least; kMost at most.
  Duration End(Duration least) const { return std::min(mean_ + std::max(least, 4 * deviation_), kMost); }

 private:
  uint32_t samples_ = 0;
  Duration mean_{0};
  Duration deviation_{0};
};

}  // namespace longhaul::offload
