#include "transport/core/rate/loss_response.h"

#include <algorithm>
#include <cmath>

namespace longhaul::transport {
namespace {

// At 20 % random loss, twenty packets show 30 % or more in every seventh round; 45 % in one of 200.
constexpr double kHalvingSigmas = 2;
// With so many the deviation is 2 % and below: no longer a reason to wait.
constexpr double kDecisivePackets = 500;

}  // namespace

double LossResponse::Target(double floor) const {
  return std::max(target_, std::min(floor, kMaxTrustedFloor) + kFloorMargin);
}

bool LossResponse::Exceeds(ByteCount acked, ByteCount lost, double level, double sigmas) const {
  const double packets = (acked + lost) / max_datagram_;
  if (packets < static_cast<double>(kMinPackets)) return false;
  const double loss = lost / (acked + lost);
  return loss - sigmas * std::sqrt(loss * (1.0 - loss) / packets) >= level;
}

void LossResponse::OnRound(ByteCount acked, ByteCount lost, double floor, Bandwidth rate) {
  acked_ += acked;
  lost_ += lost;
  if ((acked_ + lost_) / max_datagram_ < static_cast<double>(kMinPackets)) return;
  const double threshold = std::max(bubble_threshold_, std::min(floor, kMaxTrustedFloor) + kBubbleMargin);
  if (Exceeds(acked_, lost_, threshold, kHalvingSigmas)) {
    verdict_ = LossVerdict::kHalve;
    Halve(rate);
  } else if (Exceeds(acked_, lost_, threshold, 0) && (acked_ + lost_) / max_datagram_ < kDecisivePackets) {
    verdict_ = LossVerdict::kHold;
    return;
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
