#include "transport/core/rate/hystart.h"

#include <algorithm>

namespace longhaul::transport {

void HyStart::OnRoundStart() {
  if (conservative_ && ++css_rounds_ >= kCssRounds) done_ = true;
  last_round_min_ = round_min_;
  round_min_ = Duration::max();
  samples_ = 0;
}

void HyStart::OnRttSample(Duration rtt) {
  if (done_) return;
  round_min_ = std::min(round_min_, rtt);
  if (++samples_ < kRttSamples) return;
  if (!conservative_ && RttGrew()) {
    conservative_ = true;
    css_baseline_ = round_min_;
    css_rounds_ = 0;
  } else if (conservative_ && round_min_ < css_baseline_) {
    conservative_ = false;  // the growth was noise
    css_baseline_ = Duration::max();
  }
}

bool HyStart::RttGrew() const {
  if (last_round_min_ == Duration::max()) return false;
  const Duration thresh =
      std::clamp<Duration>(last_round_min_ / kMinRttDivisor, kMinRttThresh, kMaxRttThresh);
  return round_min_ >= last_round_min_ + thresh;
}

}  // namespace longhaul::transport
