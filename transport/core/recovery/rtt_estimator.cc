#include "transport/core/recovery/rtt_estimator.h"

#include <algorithm>

#include "transport/core/recovery/ack_tracker.h"

namespace longhaul::transport {

void RttEstimator::OnSample(Duration latest, Duration ack_delay, Instant now) {
  (void)now;
  if (latest <= Duration::zero()) return;
  latest_ = latest;
  min_ = std::min(min_, latest);
  // A peer may claim any delay: more than it may take by contract is not believed.
  const Duration delay = std::clamp(ack_delay, Duration::zero(), AckTracker::kMaxAckDelay);
  adjusted_ = latest - min_ >= delay ? latest - delay : latest;
  if (!has_sample_) {
    has_sample_ = true;
    smoothed_ = latest;
    rttvar_ = latest / 2;
    return;
  }
  const Duration deviation = smoothed_ > adjusted_ ? smoothed_ - adjusted_ : adjusted_ - smoothed_;
  rttvar_ = (3 * rttvar_ + deviation) / 4;
  smoothed_ = (7 * smoothed_ + adjusted_) / 8;
}

Duration RttEstimator::PtoBase(Duration max_ack_delay) const {
  return smoothed_ + std::max<Duration>(4 * rttvar_, kGranularity) + max_ack_delay;
}

}  // namespace longhaul::transport
