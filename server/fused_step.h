// One pass over several arrays at once: a few elements of each are loaded, the whole step is computed on them
// in registers, and they are stored. An expression per array would go through memory once per array instead.
#pragma once

#include <Eigen/Core>
#include <cstddef>

namespace longhaul::server {

// Elements that are in registers at a time: two vectors of SSE, one of AVX.
inline constexpr int kFusedBlock = 8;

// N consecutive floats, by value. Inlined by force: a call would take them through memory.
template <int N>
using FusedBlock = Eigen::Array<float, N, 1>;

template <int N>
EIGEN_ALWAYS_INLINE FusedBlock<N> LoadBlock(const float* from) {
  return Eigen::Map<const FusedBlock<N>>(from);
}
template <int N>
EIGEN_ALWAYS_INLINE void StoreBlock(const FusedBlock<N>& values, float* to) {
  Eigen::Map<FusedBlock<N>> out(to);
  out = values;
}

// Calls step.operator()<N>(i) for elements i..i+N-1 of every block of 0..count-1, N = kFusedBlock and, for
// the last few, 1. The step loads what it needs before it stores anything.
template <typename Step>
void ForBlocks(size_t count, const Step& step) {
  size_t i = 0;
  for (; i + kFusedBlock <= count; i += kFusedBlock) step.template operator()<kFusedBlock>(i);
  for (; i < count; ++i) step.template operator()<1>(i);
}

}  // namespace longhaul::server
