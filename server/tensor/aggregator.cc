#include "server/tensor/aggregator.h"

#include <Eigen/Core>
#include <algorithm>

#include "base/check.h"

namespace longhaul::server {

Aggregator::Aggregator(codec::ChunkGeometry geometry, uint32_t ranks, Order order, Aggregation how,
                       const longhaul_aggregation* plugin)
    : geometry_(geometry),
      order_(how == Aggregation::kMean ? order : Order::kRank),
      sums_(geometry.count),
      contributed_(ranks),
      tallies_(geometry.chunks()),
      held_(geometry.Length(0)) {
  if (const longhaul_aggregation* rule = RuleOf(how, plugin)) robust_mean_.emplace(rule);
}

bool Aggregator::Add(uint32_t rank, uint32_t chunk, std::span<const float> values, float weight,
                     float scale) {
  LH_CHECK_OP(rank, <, contributed_.size());
  LH_CHECK_OP(chunk, <, tallies_.size());
  LH_CHECK_OP(values.size(), ==, geometry_.Length(chunk));
  transport::ChunkBitmap& contributed = contributed_[rank];
  if (contributed.size() == 0) contributed = transport::ChunkBitmap(geometry_.chunks());
  if (!contributed.Set(chunk)) return false;
  Tally& tally = tallies_[chunk];
  if (tally.round != round_) tally = {.round = round_, .contributors = 0, .weight = 0, .first_held = 0};
  if (order_ == Order::kRank) {
    held_.Insert(&tally.first_held, {.rank = rank, .weight = weight, .scale = scale, .next = 0}, values);
  } else {
    Accumulate(chunk, values, weight * scale, tally.contributors == 0);
  }
  tally.weight += static_cast<double>(weight);
  ++tally.contributors;
  return true;
}

// The first contribution overwrites, so that no pass over the accumulator is spent on clearing it.
void Aggregator::Accumulate(uint32_t chunk, std::span<const float> values, float factor, bool first) {
  const Eigen::Map<const Eigen::ArrayXf> in(values.data(), static_cast<Eigen::Index>(values.size()));
  Eigen::Map<Eigen::ArrayXf> out(sums_.data() + geometry_.First(chunk), in.size());
  if (first) {
    out = factor * in;
  } else {
    out += factor * in;
  }
}

// Sums of weights depend on their order as well.
double Aggregator::weight(uint32_t chunk) const {
  const Tally tally = Of(chunk);
  if (tally.first_held == 0) return tally.weight;
  double sum = 0;
  for (uint32_t at = tally.first_held; at != 0; at = held_.entry(at).next)
    sum += static_cast<double>(held_.entry(at).weight);
  return sum;
}

std::span<float> Aggregator::sum(uint32_t chunk, size_t liars) {
  if (Of(chunk).first_held != 0) robust() ? RobustSum(chunk, liars) : SumHeld(chunk);
  const std::span<float> values = geometry_.Elements(sums_.span(), chunk);
  if (contributors(chunk) == 0) std::fill(values.begin(), values.end(), 0.0f);
  return values;
}

void Aggregator::SumHeld(uint32_t chunk) {
  Tally& tally = tallies_[chunk];
  tally.weight = weight(chunk);
  for (uint32_t at = tally.first_held; at != 0; at = held_.entry(at).next) {
    const HeldValues::Entry& held = held_.entry(at);
    Accumulate(chunk, held_.values(at).first(geometry_.Length(chunk)), held.weight * held.scale,
               at == tally.first_held);
  }
  held_.Release(&tally.first_held);
}

void Aggregator::RobustSum(uint32_t chunk, size_t liars) {
  Tally& tally = tallies_[chunk];
  tally.weight = weight(chunk);
  std::vector<uint32_t> ranks;
  std::vector<float> weights;
  std::vector<const float*> values;
  for (uint32_t at = tally.first_held; at != 0; at = held_.entry(at).next) {
    ranks.push_back(held_.entry(at).rank);
    weights.push_back(held_.entry(at).weight);
    values.push_back(held_.values(at).data());
  }
  const std::span<float> out = geometry_.Elements(sums_.span(), chunk);
  const int32_t code = robust_mean_->Compute({.first = geometry_.First(chunk),
                                              .count = out.size(),
                                              .contributors = tally.contributors,
                                              .liars = static_cast<uint32_t>(liars),
                                              .ranks = ranks.data(),
                                              .weights = weights.data(),
                                              .values = values.data(),
                                              .scratch = nullptr},
                                             out);
  if (code != 0) failed_ = std::string(robust_mean_->name()) + " " + CodeText(code);
  Eigen::Map<Eigen::ArrayXf>(out.data(), static_cast<Eigen::Index>(out.size())) *=
      static_cast<float>(tally.weight);
  held_.Release(&tally.first_held);
}

void Aggregator::Reset() {
  for (uint32_t chunk = 0; held_.size() > 0; ++chunk) {
    if (Of(chunk).first_held != 0) held_.Release(&tallies_[chunk].first_held);
  }
  for (auto& bits : contributed_) bits = {};
  ++round_;
}

}  // namespace longhaul::server
