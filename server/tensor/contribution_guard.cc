#include "server/tensor/contribution_guard.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/reached.h"
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
      positions_(factor > 0 ? chunks : 0),
      usual_(positions_.size() * ranks),
      totals_(ranks),
      unsettled_(repays ? usual_.size() : 0),
      first_rounds_(ranks, 0) {
  LH_CHECK(factor == 0 || factor >= 1);
}

void ContributionGuard::OnMember(uint32_t rank, uint64_t round) {
  first_rounds_[rank] = std::max(first_rounds_[rank], static_cast<uint32_t>(round));
}

uint32_t ContributionGuard::SettleGradients(uint32_t rank, uint32_t chunk, uint64_t round) {
  if (unsettled_.empty()) return 1;
  uint32_t& first = unsettled_[rank * positions_.size() + chunk];
  first = std::max(first, first_rounds_[rank]);
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
  LH_CHECK(positions_.empty() || chunk < positions_.size());
  const double gradients = SettleGradients(rank, chunk, round);
  const std::optional<double> energy = window.not_finite ? std::nullopt : FiniteEnergy(values);
  if (!energy) {
    LH_REACHED("a contribution is not finite");
    window.not_finite = true;
    ++window.refused;
    return Verdict::kNotFinite;
  }
  if (!FitsSum(values, *energy, scale)) {
    ++window.refused;
    return Verdict::kOverflows;
  }
  if (positions_.empty()) return Verdict::kOk;
  const double weighted = *energy * static_cast<double>(weight) * static_cast<double>(weight);
  if (IsTooLarge(rank, chunk, weighted / gradients / gradients)) {
    ++window.refused;
    NoteRefusal(rank, chunk, round);
    LH_REACHED("a contribution is too large");
    return Verdict::kTooLarge;
  }
  positions_[chunk].refused = 0;
  if (gradients == 1) Learn(rank, chunk, weighted);
  return Verdict::kOk;
}

bool ContributionGuard::FitsSum(std::span<const float> values, double energy, float scale) const {
  const double bound =
      codec::LargestSummable(static_cast<uint32_t>(windows_.size()), static_cast<double>(scale));
  if (std::sqrt(energy) <= bound) return true;  // no value is larger than the norm
  return std::ranges::all_of(values, [bound](float v) { return std::abs(static_cast<double>(v)) <= bound; });
}

template <typename Usual>
double ContributionGuard::MedianOfOthers(uint32_t rank, const Usual& usual_of) {
  known_.clear();
  for (uint32_t other = 0; other < windows_.size(); ++other) {
    const double usual = other == rank ? 0 : usual_of(other);
    if (usual > 0) known_.push_back(usual);
  }
  if (known_.empty()) return 0;
  const auto middle = known_.begin() + static_cast<std::ptrdiff_t>((known_.size() - 1) / 2);
  std::ranges::nth_element(known_, middle);
  return *middle;
}

double ContributionGuard::Reference(uint32_t rank, uint32_t chunk) {
  const auto at_position = [&](uint32_t of) { return static_cast<double>(usual(of, chunk)); };
  const auto in_tensor = [&](uint32_t of) {
    const Total& total = totals_[of];
    return total.positions == 0 ? 0 : total.energy / total.positions;
  };
  const double position = MedianOfOthers(rank, at_position);
  if (known_.size() < 2 && positions_[chunk].accepted < kLearned) return 0;
  const double others = std::max(position, MedianOfOthers(rank, in_tensor));
  return others > 0 ? others : std::max(at_position(rank), in_tensor(rank));
}

bool ContributionGuard::IsTooLarge(uint32_t rank, uint32_t chunk, double energy) {
  const double reference = Reference(rank, chunk);
  // A tensor that was all zero so far says nothing about what is usual.
  if (reference <= 0 || energy <= factor_ * factor_ * reference) return false;
  last_excess_ = std::sqrt(energy / reference);
  return true;
}

void ContributionGuard::Learn(uint32_t rank, uint32_t chunk, double energy) {
  Position& position = positions_[chunk];
  if (position.accepted < kLearned) ++position.accepted;
  const auto before = static_cast<double>(usual(rank, chunk));
  SetUsual(rank, chunk, before > 0 ? before + kNewShare * (energy - before) : energy);
}

void ContributionGuard::NoteRefusal(uint32_t rank, uint32_t chunk, uint64_t round) {
  Position& position = positions_[chunk];
  const uint32_t behind = static_cast<uint32_t>(round) + 1;
  if (std::exchange(position.round, behind) == behind) return;
  if (++position.refused == kGivesWay) GiveWay(rank, chunk);
}

void ContributionGuard::GiveWay(uint32_t rank, uint32_t chunk) {
  positions_[chunk].refused = 0;
  const double step = std::max(factor_, kLeastStep);
  const double energy = step * step * Reference(rank, chunk);
  for (uint32_t each = 0; each < windows_.size(); ++each) SetUsual(each, chunk, energy);
}

void ContributionGuard::SetUsual(uint32_t rank, uint32_t chunk, double energy) {
  float& now = usual(rank, chunk);
  Total& total = totals_[rank];
  const auto before = static_cast<double>(now);
  // Squares of finite floats may exceed float: the average stays finite.
  now = static_cast<float>(std::min(energy, static_cast<double>(std::numeric_limits<float>::max())));
  total.energy += static_cast<double>(now) - before;
  if (before <= 0 && now > 0) ++total.positions;
  if (before > 0 && now <= 0) --total.positions;
}

}  // namespace longhaul::server
