// Element-wise top-k: only the largest elements of a tensor travel, in sparse chunks; the rest stays with the
// sender, whose loss policy remembers it (codec/policy/loss_policy.h, Remembers).
//
// The threshold comes from a sample instead of a sort of everything (Lin et al. 2018, Deep Gradient
// Compression): with 10,000 elements a share of 10 % is met to about +-0.3 points. It is one for the whole
// tensor, so chunks with larger elements send more of them, up to what their symbol holds.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"

namespace longhaul::codec {

inline constexpr uint32_t kTopKSample = 10'000;

// The magnitude that about `share` of the elements reach; exact for tensors up to the sample's size, but that
// equal magnitudes all reach it. REQUIRES: values not empty and finite, 0 < share <= 1.
float TopKThreshold(std::span<const float> values, double share, uint64_t seed);

// The same of a tensor whose elements are asked for one by one.
class TopKSampler {
 public:
  // REQUIRES: count >= 1, 0 < share <= 1.
  TopKSampler(uint64_t count, double share, uint64_t seed);
  // The element that Add awaits; count: the sample is complete.
  uint64_t next() const { return next_; }
  void Add(float value);
  // REQUIRES: the sample is complete.
  float Threshold();

 private:
  uint64_t NextPlace();

  uint64_t count_;
  double share_;
  Random random_;
  uint64_t next_ = 0;
  std::vector<uint32_t> sample_;  // magnitudes
};

// Bits of the least magnitude that travels: zero never does.
inline uint32_t LeastMagnitude(float threshold) {
  return std::max(std::bit_cast<uint32_t>(threshold) & 0x7fffffff, 1u);
}

// Copies to `out` the elements of one chunk that travel, zeros for the others: those of at least `threshold`
// that are not zero, and if they are more than `capacity`, the `capacity` largest (the first among equals).
// Returns how many. `out` may be `values`. REQUIRES: equal sizes, finite values.
uint32_t SelectTopK(std::span<const float> values, float threshold, uint32_t capacity, std::span<float> out);

// No infinity and no NaN among them; one pass by vectors.
bool AllFinite(std::span<const float> values);

}  // namespace longhaul::codec
