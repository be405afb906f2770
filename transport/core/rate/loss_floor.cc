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

double LossFloor::upper() const {
  if (!known()) return 1;
  const double packets = total_ / static_cast<double>(max_datagram_.value());
  // As if one packet had been lost, at least: none lost of a few says little.
  const double share = std::max(value(), 1 / packets);
  return std::min(1.0, value() + 2 * std::sqrt(share / packets));
}

void SmallestLossFloor::OnPackets(ByteCount acked, ByteCount lost) {
  first_.OnPackets(acked, lost);
  acked_ += acked;
  lost_ += lost;
  if ((acked_ + lost_).value() < block_) return;
  blocks_[complete_++ % kBlocks] = lost_ / (acked_ + lost_);
  acked_ = lost_ = ByteCount();
}

double SmallestLossFloor::deviation() const {
  const double floor = value();
  return std::sqrt(floor * (1 - floor) / static_cast<double>(kBlockPackets));
}

double SmallestLossFloor::value() const {
  if (complete_ == 0) return first_.value();
  return *std::min_element(blocks_.begin(),
                           blocks_.begin() + static_cast<std::ptrdiff_t>(std::min(complete_, kBlocks)));
}

}  // namespace longhaul::transport
