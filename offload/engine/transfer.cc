#include "offload/engine/transfer.h"

#include <algorithm>

namespace longhaul::offload {

void Transfer::OnRoundTrip(Duration rtt) {
  if (smoothed_rtt_ == Duration(0)) {
    smoothed_rtt_ = rtt;
    rtt_variance_ = rtt / 2;
    return;
  }
  const Duration deviation = rtt > smoothed_rtt_ ? rtt - smoothed_rtt_ : smoothed_rtt_ - rtt;
  rtt_variance_ = (3 * rtt_variance_ + deviation) / 4;
  smoothed_rtt_ = (7 * smoothed_rtt_ + rtt) / 8;
}

Duration Transfer::TimeoutOf(uint8_t tries) const {
  const Duration first = smoothed_rtt_ == Duration(0)
                             ? kFirstTimeout
                             : std::max(kLeastTimeout, smoothed_rtt_ + 4 * rtt_variance_);
  return std::min(kMostTimeout, first * (1 << std::clamp(int{tries} - 1, 0, 8)));
}

}  // namespace longhaul::offload
