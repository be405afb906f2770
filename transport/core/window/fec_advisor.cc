#include "transport/core/window/fec_advisor.h"

#include <algorithm>

#include "codec/erasure_coder.h"

namespace longhaul::transport {

void FecAdvisor::Update(Instant now, Duration smoothed_rtt, double packets_per_recovery_time,
                        double path_loss) {
  packets_per_recovery_time_ = packets_per_recovery_time;
  model_.p = std::min(estimator_.loss() + estimator_.margin(), path_loss);
  model_.rho = estimator_.rho();
  model_.mean_burst = estimator_.mean_burst();
  // The rule costs a microsecond: once per group, or at once when there is more loss.
  if (estimator_.groups() != groups_ || model_.p > wanted_for_) {
    groups_ = estimator_.groups();
    wanted_for_ = model_.p;
    const double rho = model_.RhoAt(
        kReferenceBlock, std::clamp(4 * model_.mean_burst, 1.0 * kMinFecDepth, 1.0 * kMaxFecDepth));
    wanted_ = RepairSymbolsFor(kReferenceBlock, codec::ErasureCoder::MaxRepair(kReferenceBlock), model_.p,
                               rho, packets_per_recovery_time);
  }
  hold_.Update(wanted_, now, smoothed_rtt);
}

}  // namespace longhaul::transport
