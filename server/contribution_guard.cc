#include "server/contribution_guard.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/check.h"

namespace longhaul::server {
namespace {

// Sum of squares; none when a value is not finite.
std::optional<double> FiniteEnergy(std::span<const float> values) {
  const Eigen::Map<const Eigen::ArrayXf> in(values.data(), static_cast<Eigen::Index>(values.size()));
  // One fast pass answers nearly always: a finite sum of squares has only finite terms.
  const float fast = in.square().sum();
  if (std::isfinite(fast)) return fast;
  const bool finite = std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
  if (!finite) return std::nullopt;
  return in.cast<double>().square().sum();  // the squares were beyond float
}

}  // namespace

const char* GuardVerdictName(ContributionGuard::Verdict verdict) {
  switch (verdict) {
    case ContributionGuard::Verdict::kOk:
      return "ok";
    case ContributionGuard::Verdict::kNotFinite:
      return "not finite";
    case ContributionGuard::Verdict::kTooLarge:
      return "too large";
  }
  return "unknown";
}

ContributionGuard::ContributionGuard(uint32_t chunks, uint32_t ranks, double factor)
    : factor_(factor), windows_(ranks), usual_(factor > 0 ? chunks : 0) {
  LH_CHECK(factor == 0 || factor >= 1);
}

ContributionGuard::Verdict ContributionGuard::Check(uint32_t rank, uint32_t chunk,
                                                    std::span<const float> values) {
  LH_CHECK_OP(rank, <, windows_.size());
  Window& window = windows_[rank];
  const std::optional<double> energy = window.not_finite ? std::nullopt : FiniteEnergy(values);
  if (!energy) {
    window.not_finite = true;
    ++window.refused;
    return Verdict::kNotFinite;
  }
  if (usual_.empty()) return Verdict::kOk;
  LH_CHECK_OP(chunk, <, usual_.size());
  if (IsTooLarge(chunk, *energy)) {
    ++window.refused;
    if (++usual_[chunk].refused == kGivesWay) GiveWay(chunk);
    return Verdict::kTooLarge;
  }
  usual_[chunk].refused = 0;
  Learn(chunk, *energy);
  return Verdict::kOk;
}

bool ContributionGuard::IsTooLarge(uint32_t chunk, double energy) {
  const Usual& usual = usual_[chunk];
  if (usual.accepted < kLearned) return false;
  const double reference = Reference(usual);
  // A tensor that was all zero so far says nothing about what is usual.
  if (reference <= 0 || energy <= factor_ * factor_ * reference) return false;
  last_excess_ = std::sqrt(energy / reference);
  return true;
}

void ContributionGuard::Learn(uint32_t chunk, double energy) {
  Usual& usual = usual_[chunk];
  if (usual.accepted == 0) ++usual_count_;
  if (usual.accepted < kLearned) ++usual.accepted;
  // The plain mean of the first few, then the moving one.
  const double share = usual.accepted < kLearned ? 1.0 / usual.accepted : kNewShare;
  const double before = static_cast<double>(usual.energy);
  SetUsual(usual, before + share * (energy - before));
}

void ContributionGuard::GiveWay(uint32_t chunk) {
  Usual& usual = usual_[chunk];
  usual.refused = 0;
  const double step = std::max(factor_, kLeastStep);
  SetUsual(usual, step * step * Reference(usual));
}

void ContributionGuard::SetUsual(Usual& usual, double energy) {
  const double before = static_cast<double>(usual.energy);
  // Squares of finite floats may exceed float: the average stays finite.
  usual.energy =
      static_cast<float>(std::min(energy, static_cast<double>(std::numeric_limits<float>::max())));
  usual_sum_ += static_cast<double>(usual.energy) - before;
}

}  // namespace longhaul::server
