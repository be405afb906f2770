// Mini-batches of a shard as a pure function of (seed, rank, round): a worker that comes back draws the same.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/demo/dataset.h"

namespace longhaul::worker {

// Images as the model sees them: `images` holds labels.size() rows of Dataset::kPixels standardised values.
struct Batch {
  std::vector<float> images;
  std::vector<uint8_t> labels;
  size_t size() const { return labels.size(); }
};

// Images first..first+count-1 of a dataset, standardised with the mean and deviation of the training pixels.
Batch MakeBatch(const Dataset& data, size_t first, size_t count);

// Goes through the shard in a new random order per epoch; a batch may span two epochs. Not thread-safe.
class MiniBatches {
 public:
  // REQUIRES: shard not empty and alive as long as this object, batch_size >= 1.
  MiniBatches(const Dataset& shard, size_t batch_size, uint32_t rank, uint64_t seed);

  // The batch of a round; cheapest when rounds come in order.
  Batch ForRound(uint64_t round);

 private:
  void ShuffleFor(uint64_t epoch);

  const Dataset& shard_;
  const size_t batch_size_;
  const uint32_t rank_;
  const uint64_t seed_;
  uint64_t epoch_ = 0;
  std::vector<uint32_t> order_;  // of epoch_; empty at first
};

}  // namespace longhaul::worker
