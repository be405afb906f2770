#include "tests/server/loss_checkers.h"

#include <cmath>
#include <cstdlib>

namespace longhaul::server {
namespace {

std::string At(uint64_t element, const std::string& what, double is, double should) {
  return "element " + std::to_string(element) + ": " + what + " is " + std::to_string(is) + ", should be " +
         std::to_string(should);
}

}  // namespace

ResidualChecker::ResidualChecker(const codec::ChunkGeometry& geometry, bool exact)
    : geometry_(geometry),
      exact_(exact),
      produced_(geometry.count, 0),
      applied_(geometry.count, 0),
      forgotten_(geometry.count, 0),
      magnitude_(geometry.count, 1) {}

void ResidualChecker::OnGone(uint64_t process, double weight) {
  const auto books = owed_.find(process);
  if (books == owed_.end()) return;
  for (uint64_t e = 0; e < geometry_.count; ++e) forgotten_[e] += weight * books->second[e];
  owed_.erase(books);
}

Violation ResidualChecker::Check(const RoundRecord& record) {
  std::vector<double> still(geometry_.count, 0);
  for (const RoundPart& part : record.parts) {
    std::vector<double>& owed = owed_.try_emplace(part.process, geometry_.count, 0).first->second;
    for (uint64_t e = 0; e < geometry_.count; ++e) {
      const auto chunk = static_cast<uint32_t>(e / geometry_.chunk_elements);
      const double gradient = part.gradient[e];
      produced_[e] += part.weight * gradient;
      magnitude_[e] += part.weight * std::abs(gradient);
      const auto sent = static_cast<double>(part.sent[e]);
      owed[e] += gradient - (part.counted[chunk] || part.dropped[chunk] ? sent : 0.0);
      if (part.dropped[chunk]) forgotten_[e] += part.weight * sent;
      if (!part.gone) still[e] += part.weight * static_cast<double>(part.memory->owed()[e]);
    }
    if (part.gone) OnGone(part.process, part.weight);
  }
  for (uint32_t chunk = 0; chunk < geometry_.chunks(); ++chunk) {
    std::map<uint32_t, double> divisor;
    for (const RoundPart& part : record.parts) {
      if (part.counted[chunk] || record.closed[part.rank]) divisor[part.rank] = part.weight;
    }
    double weight = 0;
    for (const auto& [rank, w] : divisor) weight += w;
    for (uint64_t e = geometry_.First(chunk); e < geometry_.First(chunk) + geometry_.Length(chunk); ++e) {
      const double sum = static_cast<double>(record.mean[e]) * weight;
      // Integers come back exactly: a float's rounding of a small sum is far below a half.
      applied_[e] += exact_ ? std::round(sum) : sum;
      const double accounted = applied_[e] + still[e] + forgotten_[e];
      const double tolerance = exact_ ? 0 : 1e-6 * magnitude_[e];
      if (!(std::abs(accounted - produced_[e]) <= tolerance)) {
        return At(e, "applied + owed + forgotten", accounted, produced_[e]);
      }
    }
  }
  return std::nullopt;
}

ShiftChecker::ShiftChecker(const codec::ChunkGeometry& geometry, double alpha, bool exact, double rounding)
    : geometry_(geometry), alpha_(alpha), exact_(exact), rounding_(rounding) {}

void ShiftChecker::BeginEpoch(const std::map<uint32_t, double>& weights) {
  weights_ = weights;
  shifts_.clear();
  for (const auto& [rank, weight] : weights) shifts_[rank].assign(geometry_.count, 0);
}

bool ShiftChecker::Same(double a, double b) const {
  return exact_ ? a == b : std::abs(a - b) <= 2e-5 * (10 + std::abs(b));
}

Violation ShiftChecker::Check(const RoundRecord& record, std::span<const float> shift_sum) {
  double total = 0;
  for (const auto& [rank, weight] : weights_) total += weight;
  for (uint64_t e = 0; e < geometry_.count; ++e) {
    const auto chunk = static_cast<uint32_t>(e / geometry_.chunk_elements);
    double sum = 0;
    for (const auto& [rank, weight] : weights_) sum += weight * shifts_.at(rank)[e];
    for (const RoundPart& part : record.parts) {
      if (!part.counted[chunk]) continue;
      double& shift = shifts_.at(part.rank)[e];
      const double expected = static_cast<double>(part.gradient[e]) - shift;
      const auto sent = static_cast<double>(part.sent[e]);
      const double slack = rounding_ + (exact_ ? 0 : 1e-4);
      if (!(std::abs(sent - expected) <= slack)) return At(e, "what was sent", sent, expected);
      sum += part.weight * sent;
      shift += alpha_ * sent;
    }
    const double mean = static_cast<double>(record.mean[e]) * total;
    if (!Same(exact_ ? std::round(mean) : mean, sum)) return At(e, "mean x weight", mean, sum);

    double of_workers = 0;
    for (const auto& [rank, weight] : weights_) of_workers += weight * shifts_.at(rank)[e];
    if (!Same(shift_sum[e], of_workers)) return At(e, "C", static_cast<double>(shift_sum[e]), of_workers);
    for (const RoundPart& part : record.parts) {
      if (part.gone || part.behind) continue;
      const auto is = static_cast<double>(part.memory->shift()[e]);
      const double should = shifts_.at(part.rank)[e];
      if (!Same(is, should)) return At(e, "the shift of rank " + std::to_string(part.rank), is, should);
    }
  }
  return std::nullopt;
}

}  // namespace longhaul::server
