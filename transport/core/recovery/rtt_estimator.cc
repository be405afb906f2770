#include "transport/core/recovery/rtt_estimator.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/reached.h"
#include "transport/core/recovery/ack_tracker.h"

namespace longhaul::transport {
namespace {

// a - b on a clock that wraps: both are less than 35 minutes apart.
int64_t Difference(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b); }

}  // namespace

void RttEstimator::OnSample(Duration latest, Duration ack_delay, Instant now) {
  (void)now;
  if (latest <= Duration::zero()) return;
  latest_ = latest;
  min_ = std::min(min_, latest);
  // A peer may claim any delay; it counts up to the bound that the protocol sets.
  const Duration delay = std::clamp(ack_delay, Duration::zero(), AckTracker::kMaxAckDelay);
  const Duration sample = latest - min_ >= delay ? latest - delay : latest;
  adjusted_ = std::max(min_, latest - std::clamp(ack_delay, Duration::zero(), kMaxHeld));
  LH_CHECK_OP(min_.count(), <=, adjusted_.count());
  LH_CHECK_OP(adjusted_.count(), <=, latest_.count());
  if (!has_sample_) {
    has_sample_ = true;
    smoothed_ = latest;
    rttvar_ = latest / 2;
    return;
  }
  const Duration deviation = smoothed_ > sample ? smoothed_ - sample : sample - smoothed_;
  rttvar_ = (3 * rttvar_ + deviation) / 4;
  smoothed_ = (7 * smoothed_ + sample) / 8;
}

Duration RttEstimator::PtoBase(Duration max_ack_delay) const {
  return smoothed_ + std::max<Duration>(4 * rttvar_, kGranularity) + max_ack_delay;
}

void QueueDelay::Lowest::Add(uint32_t value) {
  if (!any || Difference(value, offset) < 0) offset = value;
  any = true;
}

void QueueDelay::OnPacket(Instant now, uint32_t timestamp_us, Duration smoothed_rtt) {
  const uint32_t offset = static_cast<uint32_t>(now.nanoseconds() / 1000) - timestamp_us;
  if (!base_.any || now - base_start_ >= kBaseTime) {
    previous_base_ = base_;
    base_ = {};
    base_start_ = now;
  }
  base_.Add(offset);
  NoticeLongerPath(now, offset, smoothed_rtt);
  if (!bucket_.any || now - bucket_start_ >= std::max(smoothed_rtt / 2, kMinBucket)) {
    bucket_ = {};
    bucket_start_ = now;
  }
  bucket_.Add(offset);
  standing_us_ = std::max<int64_t>(0, Above(bucket_.offset));
}

int64_t QueueDelay::Above(uint32_t offset) const {
  Lowest base = base_;
  if (previous_base_.any) base.Add(previous_base_.offset);
  return Difference(offset, base.offset);
}

void QueueDelay::NoticeLongerPath(Instant now, uint32_t offset, Duration smoothed_rtt) {
  const Duration pause = now - std::exchange(last_, now);
  if (pause < std::max(smoothed_rtt, kMinBucket)) return;
  empty_path_.OnFirstPacket();
  const Duration above = std::chrono::microseconds(Above(offset));
  if (empty_path_.OnSample(above, above > RttEstimator::kGranularity) == Duration(0)) return;
  LH_REACHED("the way here has become longer");
  base_ = previous_base_ = {};
  base_.Add(offset);
  base_start_ = now;
}

void HostDelay::OnPacket(Instant now, Instant received) {
  now_ = now;
  received_ = std::min(now, received);
  const Duration delay = now_ - received_;
  if (now - start_ >= kTime) {
    previous_ = now - start_ < 2 * kTime ? current_ : Span();
    current_ = {};
    start_ = now;
  }
  ++current_.packets;
  current_.sum += delay;
  current_.largest = std::max(current_.largest, delay);
  if (now - least_start_ >= kStandingTime) {
    previous_least_ = now - least_start_ < 2 * kStandingTime ? least_ : Duration::zero();
    least_ = delay;
    least_start_ = now;
  }
  least_ = std::min(least_, delay);
}

Duration HostDelay::mean() const {
  const int64_t packets = current_.packets + previous_.packets;
  return packets == 0 ? Duration::zero() : (current_.sum + previous_.sum) / packets;
}

}  // namespace longhaul::transport
