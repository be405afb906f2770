#include "transport/core/window/fec_policy.h"

#include <algorithm>
#include <cmath>

#include "codec/fec/erasure_coder.h"

namespace longhaul::transport {
namespace {

// Below this the beta-binomial is the binomial to 1e-6 of its value (p above 1e-3), and s = 1 / rho would
// only lose digits.
constexpr double kNoCorrelation = 1e-10;

// Mean correlation of n packets when two of them j places apart are correlated by r^j.
double MeanCorrelation(int n, double r) {
  if (n < 2) return 0;
  double sum = 0;
  double power = r;
  for (int j = 1; j < n; ++j, power *= r) sum += (n - j) * power;
  return 2 * sum / (n * (n - 1));
}

}  // namespace

double BlockFailureProbability(int k, int m, double p, double rho) {
  const int n = k + m;
  if (p <= 0 || m >= n) return 0;
  p = std::min(p, 1 - 1e-9);  // so that the first term stays a normal number
  const double s = rho > kNoCorrelation ? 1 / std::min(rho, 1 - 1e-9) - 1 : 0;  // 0: independent
  const double a = s > 0 ? p * s : p;
  const double b = s > 0 ? (1 - p) * s : 1 - p;
  const double step = s > 0 ? 1 : 0;  // how much a loss adds to a, and an arrival to b (Polya's urn)
  double term = 1;                    // exactly i symbols lost, from i = 0
  for (int i = 0; i < n; ++i) term *= (b + i * step) / (a + b + i * step);
  // Adds the upper tail itself: one minus the lower tail would drown small probabilities in rounding.
  double tail = 0;
  for (int i = 1; i <= n; ++i) {
    term *= (n - i + 1) * (a + (i - 1) * step) / (i * (b + (n - i) * step));
    if (i > m) tail += term;
  }
  return std::min(tail, 1.0);
}

double LossModel::RhoAt(int n, double spacing) const {
  if (rho <= 0 || p <= 0 || p >= 1) return 0;
  // P(lost | the one before was) = 1 - 1 / burst = p + (1 - p) r.
  const double r = std::clamp((1 - 1 / std::max(1.0, mean_burst) - p) / (1 - p), 0.0, 1.0);
  const double by_bursts = MeanCorrelation(LossEstimator::kGroup, r);
  const double fading = std::min(rho, by_bursts);
  const double share = by_bursts > 0 ? MeanCorrelation(n, std::pow(r, spacing)) / by_bursts : 0;
  return std::min(rho - fading + fading * share, LossEstimator::kMaxCorrelation);
}

// The greedy rule stops at its first local minimum, which above 15 % loss is m = 0: the gain of one more
// symbol grows before it falls. So every m is tried; below that the outcome is the rule's.
int RepairSymbolsFor(int k, int max_m, double p, double rho, double packets_at_stake) {
  const double cost = 1 / std::max(packets_at_stake, 1.0);
  int best = 0;
  double best_total = BlockFailureProbability(k, 0, p, rho);
  for (int m = 1; m <= max_m; ++m) {
    const double total = BlockFailureProbability(k, m, p, rho) + m * cost;
    if (total < best_total) {
      best_total = total;
      best = m;
    }
  }
  return best;
}

// Recovery takes a geometric number X of recovery times: one of the symbols sent again is lost again with
// probability q. The mean of max(0, X - slack) is the integral of P(X > t) = q^floor(t) from the slack on.
double ExpectedOverrun(double slack, double p, int k) {
  const double again = std::max(1.0, k * p);  // symbols
  const double q = std::min(1 - std::pow(1 - std::clamp(p, 0.0, 1.0), again), 0.9);
  slack = std::max(slack, 0.0);
  const double whole = std::floor(slack);
  return std::pow(q, whole) * (whole + 1 - slack) + std::pow(q, whole + 1) / (1 - q);
}

int AdvisedDepth(const LossModel& loss, int k, double packets_per_recovery_time) {
  // Independent losses make runs of 1 / (1 - p) by chance.
  const double burst = std::min(loss.mean_burst * (1 - loss.p), 1e3);
  const int depth = std::clamp(static_cast<int>(std::lround(4 * burst)), kMinFecDepth, kMaxFecDepth);
  const auto failure = [&](double rho) {
    const int m =
        RepairSymbolsFor(k, codec::ErasureCoder::MaxRepair(k), loss.p, rho, packets_per_recovery_time);
    return BlockFailureProbability(k, m, loss.p, rho);
  };
  const bool suffices = failure(loss.RhoAt(k, depth)) <= kMaxBlockFailure;
  return suffices || failure(0) > kMaxBlockFailure ? depth : kMaxFecDepth;
}

int RepairHold::extra() const { return static_cast<int>(std::ceil(held_)) - wanted_; }

void RepairHold::Update(int wanted, Instant now, Duration rtt) {
  const double elapsed = static_cast<double>((now - updated_).count());
  const double fallen = elapsed / static_cast<double>(std::max<int64_t>(rtt.count(), 1));
  held_ = std::max<double>(wanted, held_ - fallen);
  wanted_ = wanted;
  updated_ = now;
}

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
