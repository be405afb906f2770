#include "transport/core/recovery/queue_delay.h"

#include <algorithm>

namespace longhaul::transport {
namespace {

// a - b on a clock that wraps: both are less than 35 minutes apart.
int64_t Difference(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b); }

}  // namespace

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
  if (!bucket_.any || now - bucket_start_ >= std::max(smoothed_rtt / 2, kMinBucket)) {
    bucket_ = {};
    bucket_start_ = now;
  }
  bucket_.Add(offset);
  Lowest base = base_;
  if (previous_base_.any) base.Add(previous_base_.offset);
  standing_us_ = std::max<int64_t>(0, Difference(bucket_.offset, base.offset));
}

}  // namespace longhaul::transport
