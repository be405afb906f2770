// Which values a round's sum can hold in float. A worker refuses larger ones before it sends them, and the
// server's guard (server/tensor/contribution_guard.h) those that come all the same.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "codec/policy/filler.h"

namespace longhaul::codec {

// Room for what loss policies make of a sum: they scale contributions (kMaxInverseShare) and add to the mean.
inline constexpr double kSumHeadroom = 8;

// The largest magnitude that `ranks` contributions may have in one place, each counted `scale` times.
inline double LargestSummable(uint32_t ranks, double scale) {
  return static_cast<double>(std::numeric_limits<float>::max()) / kSumHeadroom / ranks / std::max(1.0, scale);
}

// The largest magnitude that a worker of this weight sends. A thousandth less, since the server computes in
// float.
inline float LargestSent(uint32_t ranks, float weight) {
  return static_cast<float>(LargestSummable(ranks, static_cast<double>(weight)) * 0.999);
}

// Of its gradients: ipw counts them kMaxInverseShare times, the other policies send at most twice as much
// (shift) or drop the debt (residual).
inline float LargestGradient(uint32_t ranks, float weight) {
  return std::min(LargestSent(ranks, weight * kMaxInverseShare), LargestSent(ranks, 1) / kMaxInverseShare);
}

}  // namespace longhaul::codec
