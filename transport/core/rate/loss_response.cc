#include "transport/core/rate/loss_response.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace longhaul::transport {
namespace {

// At 20 % random loss, twenty packets show 30 % or more in every seventh round; 45 % in one of 200.
constexpr double kHalvingSigmas = 2;
constexpr double kHoldingSigmas = 2;  // 0010, 3: chance holds one round in 44
// With so many the deviation is 2 % and below: no longer a reason to wait.
constexpr double kDecisivePackets = 500;
constexpr double kLastingPackets = 100;  // at 2 % the deviation is 1.4 %: fewer show nothing of it
constexpr double kLastingSigmas = 1.5;   // 0010, 3: asked of many rounds together
static_assert(LossResponse::kMinPackets < kLastingPackets && kLastingPackets < kDecisivePackets);

}  // namespace

bool LossResponse::Exceeds(double packets, double lost_packets, double level, double sigmas,
                           double mean_burst) {
  LH_CHECK_OP(level, >=, 0);
  LH_CHECK_OP(mean_burst, >=, 1.0);
  if (packets < 1) return false;
  const double inflation = std::max(1.0, 2 * mean_burst - 1);
  return lost_packets / packets >= level + sigmas * std::sqrt(level * (1.0 - level) * inflation / packets);
}

LossVerdict LossResponse::OnRound(ByteCount acked, ByteCount lost, double target, double threshold,
                                  double mean_burst) {
  LH_CHECK(acked.value() >= 0 && lost.value() >= 0);
  acked_ += acked;
  lost_ += lost;
  const double packets = (acked_ + lost_) / max_datagram_;
  if (packets < static_cast<double>(kMinPackets)) return verdict_;
  const double lost_packets = lost_ / max_datagram_;
  const double level = std::max(threshold, target);
  if (Exceeds(packets, lost_packets, level, kHalvingSigmas, mean_burst)) {
    verdict_ = settling_ ? LossVerdict::kHold : LossVerdict::kHalve;
    settling_ = !settling_;
  } else if (lost_packets >= level * packets && packets < kDecisivePackets) {
    verdict_ = LossVerdict::kHold;
    return verdict_;
  } else {
    verdict_ = Exceeds(packets, lost_packets, target, kHoldingSigmas, mean_burst) ||
                       LastingExcess(target, mean_burst)
                   ? LossVerdict::kHold
                   : LossVerdict::kRaise;
    settling_ = false;
  }
  acked_ = lost_ = ByteCount();
  return verdict_;
}

// What no single round shows: a flow of forty packets a round trip would never see two per cent.
bool LossResponse::LastingExcess(double target, double mean_burst) {
  long_lost_ += lost_ / max_datagram_;
  long_total_ += (acked_ + lost_) / max_datagram_;
  if (long_total_ < kLastingPackets) return false;
  const bool exceeds = Exceeds(long_total_, long_lost_, target, kLastingSigmas, mean_burst);
  const double keep = exceeds ? 0.0 : std::min(1.0, kDecisivePackets / long_total_);
  long_lost_ *= keep;
  long_total_ *= keep;
  return exceeds;
}

}  // namespace longhaul::transport
