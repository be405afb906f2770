// The sum of one round of one tensor: one fp32 accumulator, whatever the number of workers. A chunk is added
// the moment it arrives; a bit per worker and chunk is tested and set before, so nothing can be added twice.
//
// Sums are in order of arrival (not bitwise reproducible). Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "codec/chunk.h"
#include "transport/core/window/window_types.h"

namespace longhaul::server {

class Aggregator {
 public:
  Aggregator(codec::ChunkGeometry geometry, uint32_t ranks);

  // Adds weight * values to the chunk's sum. False, with nothing added, when this rank's contribution to the
  // chunk is already in. REQUIRES: rank and chunk in range, values of the chunk's length, weight > 0.
  bool Add(uint32_t rank, uint32_t chunk, std::span<const float> values, float weight);

  bool Contributed(uint32_t rank, uint32_t chunk) const { return contributed_[rank].Test(chunk); }
  const transport::ChunkBitmap& contributed(uint32_t rank) const { return contributed_[rank]; }
  // Workers in the chunk's sum, and the sum of their weights.
  uint32_t contributors(uint32_t chunk) const { return contributors_[chunk]; }
  double weight(uint32_t chunk) const { return weights_[chunk]; }
  // sum of weight * values; all zero when nobody contributed.
  std::span<float> sum(uint32_t chunk);

  // Forgets everything: the next round begins.
  void Reset();

 private:
  codec::ChunkGeometry geometry_;
  std::vector<float> sums_;
  std::vector<transport::ChunkBitmap> contributed_;  // by rank
  std::vector<uint32_t> contributors_;               // by chunk
  std::vector<double> weights_;                      // by chunk
};

}  // namespace longhaul::server
