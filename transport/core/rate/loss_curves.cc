#include "transport/core/rate/loss_curves.h"

#include <Eigen/Cholesky>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace longhaul::transport {
namespace {

// The rise of loss must be as many standard errors, and at least so large, to count as one.
constexpr double kMinRiseSigmas = 3;
constexpr double kMinRise = 0.005;  // of loss: one packet of 200, as TargetLossFit::kMinTarget
// Smallest over largest eigenvalue of the normal equations with u in 0..1. Two clusters of u give zero; DOWN,
// CRUISE about the knee and UP give 1e-3 and more.
constexpr double kMinReciprocalCondition = 1e-5;
constexpr double kMaxWrongCurvature = 2;  // standard errors: chance bends one straight line in 44 further
constexpr int kSearchSteps = 48;          // a step of kMaxOwnLoss (0.05) is 0.1 % of loss

// Share of the sent rate that exceeds the capacity.
double Excess(const PathHinge& hinge, double sent) {
  return sent <= hinge.capacity ? 0 : 1 - hinge.capacity / sent;
}

// l(s) = first + slope * excess(s), weighted least squares.
struct LossLine {
  double first = 0;
  double slope = 0;
  bool rises = false;
};

LossLine FitLossLine(const PathHinge& hinge, std::span<const WeightedRound> rounds) {
  double n = 0, x = 0, l = 0, xx = 0, xl = 0, top = 0;
  for (const WeightedRound& r : rounds) {
    const double w = r.round->packets;
    const double e = Excess(hinge, r.round->sent);
    n += w;
    x += w * e;
    l += w * r.round->loss;
    xx += w * e * e;
    xl += w * e * r.round->loss;
    top = std::max(top, e);
  }
  const double spread = xx - x * x / n;
  if (spread <= 0) return {l / n, 0, false};
  const double slope = std::clamp((xl - x * l / n) / spread, 0.0, 1.0);
  const double error = std::sqrt(hinge.noise / spread);
  LossLine line{std::clamp((l - slope * x) / n, 0.0, 1.0), slope, false};
  line.rises = slope > kMinRiseSigmas * error && slope * top > kMinRise;
  return line;
}

// One weighted least-squares problem per curve on the same rows [1, u, u^2].
class CurveFit {
 public:
  void Add(double u, double weight, double throughput, double delay) {
    const Eigen::Vector3d x(1, u, u * u);
    gram_ += weight * x * x.transpose();
    right_.col(0) += weight * throughput * x;
    right_.col(1) += weight * delay * x;
    squares_ += weight * Eigen::Array2d(throughput * throughput, delay * delay);
    weight_squares_ += weight * weight;
  }

  bool WellConditioned() const {
    if (gram_(0, 0) <= 0) return false;
    const Eigen::Vector3d values =
        Eigen::SelfAdjointEigenSolver<Eigen::Matrix3d>(gram_, Eigen::EigenvaluesOnly).eigenvalues();
    return values(0) > kMinReciprocalCondition * values(2);
  }

  struct Solution {
    Quadratic curve;
    double excess =
        0;  // how many standard errors the free curvature is on the wrong side of zero; <= 0: none
  };
  // Least squares under the constraint that the curvature has this sign or is zero. The problem is convex, so
  // where the free solution breaks the constraint the best one lies on its edge: a straight line.
  Solution Solve(int which, double sign) const {
    const Eigen::LDLT<Eigen::Matrix3d> full(gram_);
    const Eigen::Vector3d c = full.solve(right_.col(which));
    Solution solution{{{c(0), c(1), c(2)}}, 0};
    if (c(2) * sign >= 0) return solution;
    solution.excess = std::abs(c(2)) / std::max(CurvatureError(which, c, full), 1e-12);
    const Eigen::Matrix2d gram = gram_.topLeftCorner<2, 2>();
    const Eigen::Vector2d right = right_.col(which).head<2>();
    const Eigen::Vector2d line = Eigen::LDLT<Eigen::Matrix2d>(gram).solve(right);
    solution.curve.c = {line(0), line(1), 0};
    return solution;
  }

 private:
  // Weights are no inverse variances (a queue has no binomial noise), so the variance is that of the
  // residuals, and the effective number of rounds is (sum w)^2 / sum w^2.
  double CurvatureError(int which, const Eigen::Vector3d& c, const Eigen::LDLT<Eigen::Matrix3d>& full) const {
    const double total = gram_(0, 0);
    const double rounds = total * total / weight_squares_;
    const double residual = std::max(0.0, squares_(which) - c.dot(right_.col(which)));
    const double variance = residual / total * rounds / std::max(1.0, rounds - 3);
    const Eigen::Vector3d unit = full.solve(Eigen::Vector3d::UnitZ());
    return std::sqrt(std::max(0.0, variance * unit(2) * total / rounds));
  }

  Eigen::Matrix3d gram_ = Eigen::Matrix3d::Zero();
  Eigen::Matrix<double, 3, 2> right_ = Eigen::Matrix<double, 3, 2>::Zero();
  Eigen::Array2d squares_ = Eigen::Array2d::Zero();
  double weight_squares_ = 0;
};

}  // namespace

LossCurves FitLossCurves(const PathHinge& hinge, std::span<const WeightedRound> rounds) {
  LossCurves curves;
  const LossLine line = FitLossLine(hinge, rounds);
  curves.first = curves.last = line.first;
  if (!line.rises) return curves;
  double top = 0;
  for (const WeightedRound& r : rounds) top = std::max(top, Excess(hinge, r.round->sent));
  curves.last = line.first + line.slope * top;
  LH_CHECK_OP(top, >, 0);
  const double plateau = (1 - hinge.floor) * hinge.capacity;
  CurveFit fit;
  for (const WeightedRound& r : rounds) {
    fit.Add(Excess(hinge, r.round->sent) / top, r.weight, r.round->yield * r.round->sent / plateau,
            r.round->queue);
  }
  if (!fit.WellConditioned()) {
    curves.verdict = LossCurves::Verdict::kIllConditioned;
    return curves;
  }
  const auto throughput = fit.Solve(0, -1);
  const auto delay = fit.Solve(1, 1);
  curves.throughput = throughput.curve;
  curves.delay = delay.curve;
  curves.delay_saturates = delay.excess > kMaxWrongCurvature;
  const bool concave = throughput.excess <= kMaxWrongCurvature;
  curves.verdict = concave ? LossCurves::Verdict::kUsable : LossCurves::Verdict::kBadCurvature;
  return curves;
}

double BestLoss(const LossCurves& curves, double low, double high, double delay_weight, double min_rtt) {
  LH_CHECK(curves.verdict == LossCurves::Verdict::kUsable);
  LH_CHECK_OP(min_rtt, >, 0);
  high = std::min(high, curves.last);
  if (high <= low) return low;
  double best = low;
  double best_value = -INFINITY;
  for (int i = 0; i <= kSearchSteps; ++i) {
    const double l = low + (high - low) * i / kSearchSteps;
    const double u = (l - curves.first) / (curves.last - curves.first);
    const double throughput = std::clamp(curves.throughput.At(u), 1e-6, 1.0);
    const double delay = std::max(0.0, curves.delay.At(u));
    const double value = std::log(throughput) - delay_weight * std::log1p(delay / min_rtt);
    if (value > best_value) {
      best_value = value;
      best = l;
    }
  }
  return best;
}

}  // namespace longhaul::transport
