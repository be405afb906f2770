#include "transport/core/rate/loss_floor.h"

#include <algorithm>

namespace longhaul::transport {

void LossFloor::OnLowRateRound(ByteCount acked, ByteCount lost) {
  const double fresh = static_cast<double>((acked + lost).value());
  const double memory = static_cast<double>((max_datagram_ * kMemoryPackets).value());
  const double old_share = total_ > 0 ? std::clamp((memory - fresh) / total_, 0.0, 1.0) : 0.0;
  lost_ = lost_ * old_share + static_cast<double>(lost.value());
  total_ = total_ * old_share + fresh;
}

double LossFloor::value() const {
  if (total_ < static_cast<double>((max_datagram_ * kMinPackets).value())) return 0;
  return lost_ / total_;
}

double LossFloor::Compensation() const { return 1.0 / (1.0 - std::min(value(), kMaxCompensated)); }

}  // namespace longhaul::transport
