#include "transport/core/window/fec_policy.h"

#include <algorithm>
#include <cmath>

namespace longhaul::transport {
namespace {
// Per-packet weights: the fast one follows a change within about a block or three, the slow one remembers
// about a thousand packets.
constexpr double kFastWeight = 1.0 / 64;
constexpr double kSlowWeight = 1.0 / 1024;
}  // namespace

double BlockFailureProbability(int k, int m, double p) {
  const int n = k + m;
  if (p <= 0 || m >= n) return 0;
  p = std::min(p, 1 - 1e-9);  // so that the first term stays a normal number
  // Adds the upper tail itself: one minus the lower tail would drown small probabilities in rounding.
  double term = std::pow(1 - p, n);  // exactly i symbols lost, from i = 0
  double tail = 0;
  for (int i = 1; i <= n; ++i) {
    term *= (n - i + 1) * p / (i * (1 - p));
    if (i > m) tail += term;
  }
  return std::min(tail, 1.0);
}

// The greedy rule stops at its first local minimum, which above 15 % loss is m = 0: the gain of one more symbol
// grows before it falls. So every m is tried; below that the outcome is the rule's.
int RepairSymbolsFor(int k, int max_m, double loss, double packets_per_recovery_time) {
  const double cost = 1 / std::max(packets_per_recovery_time, 1.0);
  int best = 0;
  double best_total = BlockFailureProbability(k, 0, loss);
  for (int m = 1; m <= max_m; ++m) {
    const double total = BlockFailureProbability(k, m, loss) + m * cost;
    if (total < best_total) {
      best_total = total;
      best = m;
    }
  }
  return best;
}

void LossEstimator::OnPacket(bool lost) {
  const double sample = lost ? 1 : 0;
  fast_ += kFastWeight * (sample - fast_);
  slow_ += kSlowWeight * (sample - slow_);
  ++packets_;
}

void LossEstimator::OnSpurious() {
  // Takes the full weight back although it has decayed since: an estimate a little too low for a moment is
  // cheaper than redundancy against a loss that never was.
  fast_ = std::max(0.0, fast_ - kFastWeight);
  slow_ = std::max(0.0, slow_ - kSlowWeight);
}

double LossEstimator::loss() const { return std::max(fast_, slow_); }

}  // namespace longhaul::transport
