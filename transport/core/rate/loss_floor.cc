#include "transport/core/rate/loss_floor.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace longhaul::transport {

void LossFloor::OnPackets(ByteCount acked, ByteCount lost) {
  LH_CHECK(acked.value() >= 0 && lost.value() >= 0);
  const double fresh = static_cast<double>((acked + lost).value());
  const double memory = static_cast<double>((max_datagram_ * memory_).value());
  const double old_share = total_ > 0 ? std::clamp((memory - fresh) / total_, 0.0, 1.0) : 0.0;
  lost_ = lost_ * old_share + static_cast<double>(lost.value());
  total_ = total_ * old_share + fresh;
}

double LossFloor::value() const { return known() ? lost_ / total_ : 0.0; }

// Of a two-state channel the variance is that of 1 / (2 mean_burst - 1) as many packets.
double LossFloor::error(double mean_burst) const {
  if (!known()) return 1;
  const double independent = packets() / (2 * mean_burst - 1);
  return std::min(1.0, std::sqrt(std::max(value(), 1 / independent) / independent));
}

double LossFloor::upper(double mean_burst) const {
  return known() ? std::min(1.0, value() + 2 * error(mean_burst)) : 1.0;
}

void SmallestLossFloor::OnPackets(ByteCount acked, ByteCount lost, double mean_burst) {
  first_.OnPackets(acked, lost);
  acked_ += acked;
  lost_ += lost;
  if (static_cast<double>((acked_ + lost_).value()) < block_ * mean_burst) return;
  blocks_[complete_++ % kBlocks] = lost_ / (acked_ + lost_);
  acked_ = lost_ = ByteCount();
}

double SmallestLossFloor::deviation() const {
  const double floor = std::max(value(), 1.0 / static_cast<double>(kBlockPackets));
  return std::sqrt(floor * (1 - floor) / static_cast<double>(kBlockPackets));
}

double SmallestLossFloor::value() const {
  if (complete_ == 0) return first_.value();
  return *std::min_element(blocks_.begin(),
                           blocks_.begin() + static_cast<std::ptrdiff_t>(std::min(complete_, kBlocks)));
}

}  // namespace longhaul::transport
