// One value for each element from the workers' contributions to a chunk, such that fewer than half of the
// workers cannot move it far, whatever they push.
//
//   trimmed mean      by element: without the f largest and the f smallest values, the mean of the others.
//                     Coordinate-wise trimmed mean (Yin et al. 2018, Byzantine-Robust Distributed Learning)
//   centred clipping  v := v + 1/n sum over i of (x_i - v) min(1, tau / |x_i - v|), three times; |.| over the chunk.
//                     Karimireddy et al. 2021 (Learning from History for Byzantine Robust Optimization), but with v
//                     from the elements' medians instead of the last round's result, and tau = the lower median of
//                     |x_i - v|: nothing is kept, and nothing is to be set
//
// Every contribution counts alike. Where fewer than 2 f + 1 of a chunk are here, zeros stand for what is
// missing: two that contradict each other give nothing, two that agree the smaller one.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "longhaul/job.h"

namespace longhaul::server {

// One worker's values of a chunk.
using Contribution = std::span<const float>;

// Of so many workers in a round, those that may lie: floor(share x workers), at least 1, fewer than half.
size_t LiarsAmong(size_t workers, double share);

// Of one chunk. Keeps its scratch: one for a tensor. Not thread-safe.
class RobustMean {
 public:
  // liars: f. `out` gets the result. REQUIRES: at least one contribution; all, and `out`, of the same length
  // and finite; `how` is not the mean.
  void Compute(Aggregation how, std::span<const Contribution> contributions, size_t liars,
               std::span<float> out);

 private:
  static constexpr size_t kBlock = 64;  // elements: 16 contributions of them are 4 KiB, in the cache

  void Trim(std::span<const Contribution> contributions, size_t rows, size_t trimmed, std::span<float> out);
  void Clip(std::span<const Contribution> contributions, size_t rows, std::span<float> centre);

  std::vector<float> rows_;        // of one block
  std::vector<double> distances_;  // by row
  std::vector<float> step_;
};

}  // namespace longhaul::server
