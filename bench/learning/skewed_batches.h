// Mini-batches with a label skew, as a pure function of (seed, rank, round): every policy sees the same
// images.
//
// The training images, sorted by label, are cut into as many stretches as there are workers; a worker's own
// classes are those of its stretch. Each image of a batch comes from the own stretch with probability `skew`,
// else from anywhere: skew 0 is iid. Together the workers see every class equally often.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "worker/demo/dataset.h"
#include "worker/demo/mini_batches.h"

namespace longhaul::bench {

class SkewedBatches {
 public:
  // REQUIRES: `data` not empty and alive as long as this object.
  SkewedBatches(const worker::Dataset& data, uint32_t workers, double skew, uint32_t batch, uint64_t seed);

  // Overwrites `out`.
  void Draw(uint32_t rank, uint64_t round, worker::Batch& out) const;

 private:
  const worker::Dataset& data_;
  const uint32_t workers_;
  const double skew_;
  const uint32_t batch_;
  const uint64_t seed_;
  std::vector<uint32_t> by_label_;       // image numbers
  std::array<float, 256> standardised_;  // by grey value
};

}  // namespace longhaul::bench
