#include "server/aggregator.h"

#include <Eigen/Core>
#include <algorithm>

#include "base/check.h"

namespace longhaul::server {

Aggregator::Aggregator(codec::ChunkGeometry geometry, uint32_t ranks)
    : geometry_(geometry),
      sums_(geometry.count, 0.0f),
      contributed_(ranks, transport::ChunkBitmap(geometry.chunks())),
      contributors_(geometry.chunks(), 0),
      weights_(geometry.chunks(), 0.0) {}

bool Aggregator::Add(uint32_t rank, uint32_t chunk, std::span<const float> values, float weight) {
  LH_CHECK_OP(rank, <, contributed_.size());
  LH_CHECK_OP(chunk, <, contributors_.size());
  LH_CHECK_OP(values.size(), ==, geometry_.Length(chunk));
  if (!contributed_[rank].Set(chunk)) return false;
  const Eigen::Map<const Eigen::ArrayXf> in(values.data(), static_cast<Eigen::Index>(values.size()));
  Eigen::Map<Eigen::ArrayXf> out(sums_.data() + geometry_.First(chunk), in.size());
  // The first contribution overwrites, so that no pass over the accumulator is spent on clearing it.
  if (contributors_[chunk] == 0) {
    out = weight * in;
  } else {
    out += weight * in;
  }
  ++contributors_[chunk];
  weights_[chunk] += static_cast<double>(weight);
  return true;
}

std::span<float> Aggregator::sum(uint32_t chunk) {
  const std::span<float> values = std::span(sums_).subspan(geometry_.First(chunk), geometry_.Length(chunk));
  if (contributors_[chunk] == 0) std::fill(values.begin(), values.end(), 0.0f);
  return values;
}

void Aggregator::Reset() {
  for (auto& bits : contributed_) bits = transport::ChunkBitmap(geometry_.chunks());
  std::fill(contributors_.begin(), contributors_.end(), 0u);
  std::fill(weights_.begin(), weights_.end(), 0.0);
}

}  // namespace longhaul::server
