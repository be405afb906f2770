#include "server/tensor/contribution_guard.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/check.h"
#include "codec/chunk/top_k.h"
#include "codec/policy/summable.h"

namespace longhaul::server {
namespace {

// Sum of squares; none when a value is not finite.
std::optional<double> FiniteEnergy(std::span<const float> values) {
  const Eigen::Map<const Eigen::ArrayXf> in(values.data(), static_cast<Eigen::Index>(values.size()));
  // One fast pass answers nearly always: a finite sum of squares has only finite terms.
  const float fast = in.square().sum();
  if (std::isfinite(fast)) return fast;
  if (!codec::AllFinite(values)) return std::nullopt;
  return in.cast<double>().square().sum();  // the squares were beyond float
}

}  // namespace

const char* GuardVerdictName(ContributionGuard::Verdict verdict) {
  switch (verdict) {
    case ContributionGuard::Verdict::kOk:
      return "ok";
    case ContributionGuard::Verdict::kNotFinite:
      return "not finite";
    case ContributionGuard::Verdict::kOverflows:
      return "overflows";
    case ContributionGuard::Verdict::kTooLarge:
      return "too large";
  }
  return "unknown";
}

ContributionGuard::ContributionGuard(uint32_t chunks, uint32_t ranks, double factor, bool repays)
    : factor_(factor),
      windows_(ranks),
      usual_(factor > 0 ? chunks : 0),
      unsettled_(repays ? usual_.size() * ranks : 0) {
  LH_CHECK(factor == 0 || factor >= 1);
}

void ContributionGuard::OnMember(uint32_t rank, uint64_t round) {
  if (unsettled_.empty()) return;
  for (uint32_t& first : std::span(unsettled_).subspan(rank * usual_.size(), usual_.size())) {
    first = std::max(first, static_cast<uint32_t>(round));
  }
}

uint32_t ContributionGuard::SettleGradients(uint32_t rank, uint32_t chunk, uint64_t round) {
  if (unsettled_.empty()) return 1;
  uint32_t& first = unsettled_[rank * usual_.size() + chunk];
  const auto now = static_cast<uint32_t>(round);
  const uint32_t gradients = now < first ? 1 : 1 + (now - first);
  first = now + 1;
  return std::min(gradients, kMostGradients);
}

ContributionGuard::Verdict ContributionGuard::Check(uint32_t rank, uint32_t chunk,
                                                    std::span<const float> values, float scale,
                                                    uint64_t round, float weight) {
  LH_CHECK_OP(rank, <, windows_.size());
  Window& window = windows_[rank];
  LH_CHECK(usual_.empty() || chunk < usual_.size());
  const double gradients = SettleGradients(rank, chunk, round);
  const std::optional<double> energy = window.not_finite ? std::nullopt : FiniteEnergy(values);
  if (!energy) {
    window.not_finite = true;
    ++window.refused;
    return Verdict::kNotFinite;
  }
  if (!FitsSum(values, *energy, scale)) {
    ++window.refused;
    return Verdict::kOverflows;
  }
  if (usual_.empty()) return Verdict::kOk;
  const double weighted = *energy * static_cast<double>(weight) * static_cast<double>(weight);
  if (IsTooLarge(chunk, weighted / gradients / gradients)) {
    ++window.refused;
    if (++usual_[chunk].refused == kGivesWay) GiveWay(chunk);
    return Verdict::kTooLarge;
  }
  usual_[chunk].refused = 0;
  if (gradients == 1) Learn(chunk, weighted);
  return Verdict::kOk;
}

bool ContributionGuard::FitsSum(std::span<const float> values, double energy, float scale) const {
  const double bound =
      codec::LargestSummable(static_cast<uint32_t>(windows_.size()), static_cast<double>(scale));
  if (std::sqrt(energy) <= bound) return true;  // no value is larger than the norm
  return std::ranges::all_of(values, [bound](float v) { return std::abs(static_cast<double>(v)) <= bound; });
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
  usual.energy = static_cast<float>(std::min(energy, static_cast<double>(std::numeric_limits<float>::max())));
  usual_sum_ += static_cast<double>(usual.energy) - before;
}

}  // namespace longhaul::server
