#include "transport/core/path/black_hole_detector.h"

#include <algorithm>

namespace longhaul::transport {

void BlackHoleDetector::OnPacketAcked(wire::PacketNumber number, int64_t bytes) {
  if (bytes <= base_) return;
  const size_t step = Step(bytes);
  if (step >= acked_below_.size()) acked_below_.resize(step + 1);
  acked_below_[step] = std::max(acked_below_[step], number + 1);
  if (suspicious_ > 0 && step >= smallest_step_ && number > first_number_) suspicious_ = 0;
}

void BlackHoleDetector::OnPacketLost(wire::PacketNumber number, int64_t bytes, Instant sent) {
  if (bytes <= base_ || number < ignored_below_) return;
  const size_t step = Step(bytes);
  for (size_t i = step; i < acked_below_.size(); ++i) {
    if (acked_below_[i] > number) return;
  }
  smallest_step_ = suspicious_ == 0 ? step : std::min(smallest_step_, step);
  first_number_ = suspicious_ == 0 ? number : std::min(first_number_, number);
  first_sent_ = suspicious_ == 0 ? sent : std::min(first_sent_, sent);
  last_sent_ = suspicious_ == 0 ? sent : std::max(last_sent_, sent);
  ++suspicious_;
}

void BlackHoleDetector::Reset(wire::PacketNumber next_number) {
  suspicious_ = 0;
  ignored_below_ = next_number;
}

}  // namespace longhaul::transport
