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
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "longhaul/job.h"
#include "longhaul/plugin_api.h"

namespace longhaul::server {

// One worker's values of a chunk.
using Contribution = std::span<const float>;

// Of so many workers in a round, those that may lie: floor(share x workers), at least 1, fewer than half.
size_t LiarsAmong(size_t workers, double share);

// The job's, null for the mean: a built-in one, written as a plug-in's is, or `plugin`.
const longhaul_aggregation* RuleOf(Aggregation how, const longhaul_aggregation* plugin = nullptr);

// A rule, with the memory that it needs. One for a tensor. Not thread-safe.
class RobustMean {
 public:
  static constexpr uint64_t kMaxScratchBytes = uint64_t{16} << 20;
  // Codes beside a plug-in's own.
  static constexpr int32_t kThrew = std::numeric_limits<int32_t>::min();
  static constexpr int32_t kNotFinite = kThrew + 1;
  static constexpr int32_t kTooMuchScratch = kThrew + 2;

  explicit RobustMean(const longhaul_aggregation* rule) : rule_(rule) {}
  const char* name() const { return rule_->name; }
  // chunk: but for its scratch. `out` gets the result. 0, or why there is none. REQUIRES: as
  // longhaul_contributions; `out` of the chunk's length.
  int32_t Compute(const longhaul_contributions& chunk, std::span<float> out);

 private:
  const longhaul_aggregation* rule_;
  std::vector<double> scratch_;
};

// "threw", "ended with code 7": what went wrong.
std::string CodeText(int32_t code);

}  // namespace longhaul::server
