#include "transport/core/rate/loss_response.h"

#include <algorithm>
#include <cmath>

namespace longhaul::transport {

double LossResponse::Target(double floor) const {
  return std::max(target_, std::min(floor, kMaxTrustedFloor) + kFloorMargin);
}

bool LossResponse::Exceeds(ByteCount acked, ByteCount lost, double level) const {
  const double packets = (acked + lost) / max_datagram_;
  if (packets < static_cast<double>(kMinPackets)) return false;
  const double loss = lost / (acked + lost);
  return loss - std::sqrt(loss * (1.0 - loss) / packets) >= level;
}

void LossResponse::OnRound(ByteCount acked, ByteCount lost, double floor, Bandwidth rate) {
  acked_ += acked;
  lost_ += lost;
  if ((acked_ + lost_) / max_datagram_ < static_cast<double>(kMinPackets)) return;
  const double threshold = std::max(bubble_threshold_, std::min(floor, kMaxTrustedFloor) + kBubbleMargin);
  if (Exceeds(acked_, lost_, threshold)) {
    verdict_ = LossVerdict::kHalve;
    Halve(rate);
  } else {
    verdict_ = Exceeds(acked_, lost_, Target(floor)) ? LossVerdict::kHold : LossVerdict::kRaise;
    Recover(rate);
  }
  acked_ = lost_ = ByteCount();
}

void LossResponse::Halve(Bandwidth rate) {
  if (settling_) {
    settling_ = false;
    return;
  }
  bound_ = std::min(bound_, rate) * 0.5;
  settling_ = true;
}

void LossResponse::Recover(Bandwidth rate) {
  settling_ = false;
  if (bound_ == Bandwidth::Max()) return;
  bound_ = bound_ * kRecovery;
  if (bound_ >= rate) bound_ = Bandwidth::Max();
}

}  // namespace longhaul::transport
