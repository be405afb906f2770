#include "server/tensor/aggregator.h"

#include <Eigen/Core>
#include <algorithm>
#include <utility>

#include "base/check.h"

namespace longhaul::server {

Aggregator::Aggregator(codec::ChunkGeometry geometry, uint32_t ranks, Order order, Aggregation how)
    : geometry_(geometry),
      order_(how == Aggregation::kMean ? order : Order::kRank),
      how_(how),
      sums_(geometry.count, 0.0f),
      contributed_(ranks, transport::ChunkBitmap(geometry.chunks())),
      contributors_(geometry.chunks(), 0),
      weights_(geometry.chunks(), 0.0),
      held_(order_ == Order::kRank ? geometry.chunks() : 0) {}

bool Aggregator::Add(uint32_t rank, uint32_t chunk, std::span<const float> values, float weight,
                     float scale) {
  LH_CHECK_OP(rank, <, contributed_.size());
  LH_CHECK_OP(chunk, <, contributors_.size());
  LH_CHECK_OP(values.size(), ==, geometry_.Length(chunk));
  if (!contributed_[rank].Set(chunk)) return false;
  if (order_ == Order::kRank) {
    Hold(rank, chunk, values, weight, scale);
  } else {
    Accumulate(chunk, values, weight * scale, contributors_[chunk] == 0);
    weights_[chunk] += static_cast<double>(weight);
  }
  ++contributors_[chunk];
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

void Aggregator::Hold(uint32_t rank, uint32_t chunk, std::span<const float> values, float weight,
                      float scale) {
  Held held{.rank = rank, .weight = weight, .scale = scale, .values = {}};
  if (!spare_.empty()) {
    held.values = std::move(spare_.back());
    spare_.pop_back();
  }
  held.values.assign(values.begin(), values.end());
  std::vector<Held>& of_chunk = held_[chunk];
  const auto behind = std::ranges::upper_bound(of_chunk, rank, {}, &Held::rank);
  of_chunk.insert(behind, std::move(held));
  ++held_chunks_;
}

double Aggregator::weight(uint32_t chunk) const {
  if (order_ == Order::kArrival || held_[chunk].empty()) return weights_[chunk];
  double sum = 0;
  for (const Held& held : held_[chunk]) sum += static_cast<double>(held.weight);
  return sum;
}

std::span<float> Aggregator::sum(uint32_t chunk, size_t liars) {
  if (order_ == Order::kRank && !held_[chunk].empty()) {
    robust() ? RobustSum(chunk, liars) : SumHeld(chunk);
  }
  const std::span<float> values = geometry_.Elements(std::span(sums_), chunk);
  if (contributors_[chunk] == 0) std::fill(values.begin(), values.end(), 0.0f);
  return values;
}

void Aggregator::SumHeld(uint32_t chunk) {
  weights_[chunk] = weight(chunk);
  bool first = true;
  for (const Held& held : held_[chunk]) {
    Accumulate(chunk, held.values, held.weight * held.scale, first);
    first = false;
  }
  Release(chunk);
}

void Aggregator::RobustSum(uint32_t chunk, size_t liars) {
  weights_[chunk] = weight(chunk);
  std::vector<Contribution> contributions;
  for (const Held& held : held_[chunk]) contributions.emplace_back(held.values);
  const std::span<float> out = geometry_.Elements(std::span(sums_), chunk);
  robust_mean_.Compute(how_, contributions, liars, out);
  Eigen::Map<Eigen::ArrayXf>(out.data(), static_cast<Eigen::Index>(out.size())) *=
      static_cast<float>(weights_[chunk]);
  Release(chunk);
}

void Aggregator::Release(uint32_t chunk) {
  held_chunks_ -= held_[chunk].size();
  for (Held& held : held_[chunk]) spare_.push_back(std::move(held.values));
  held_[chunk].clear();
}

void Aggregator::Reset() {
  for (auto& bits : contributed_) bits = transport::ChunkBitmap(geometry_.chunks());
  std::fill(contributors_.begin(), contributors_.end(), 0u);
  std::fill(weights_.begin(), weights_.end(), 0.0);
  for (uint32_t chunk = 0; chunk < held_.size(); ++chunk) Release(chunk);
}

}  // namespace longhaul::server
