#include "codec/chunk/top_k.h"

#include <Eigen/Core>
#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <vector>

#include "base/check.h"
#include "base/random.h"

namespace longhaul::codec {
namespace {

// Bits of a magnitude compare as the magnitude does.
uint32_t MagnitudeBits(float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffff; }

// The magnitude of rank `kept` (1 = largest).
uint32_t KeptMagnitude(std::vector<uint32_t>& magnitudes, size_t kept) {
  const auto last = magnitudes.begin() + static_cast<std::ptrdiff_t>(kept - 1);
  std::nth_element(magnitudes.begin(), last, magnitudes.end(), std::greater<>());
  return *last;
}

// Zeroes all but the `capacity` largest. REQUIRES: more than these are not zero.
void KeepLargest(uint32_t capacity, std::span<float> values) {
  std::vector<uint32_t> magnitudes;
  for (const float v : values) {
    if (v != 0.0f) magnitudes.push_back(MagnitudeBits(v));
  }
  const uint32_t least = capacity == 0 ? UINT32_MAX : KeptMagnitude(magnitudes, capacity);
  const auto larger = std::ranges::count_if(magnitudes, [least](uint32_t m) { return m > least; });
  uint32_t places = capacity - static_cast<uint32_t>(larger);  // for those that are exactly `least`
  for (float& v : values) {
    const uint32_t magnitude = MagnitudeBits(v);
    if (magnitude > least) continue;
    if (magnitude == least && places > 0) {
      --places;
    } else {
      v = 0.0f;
    }
  }
}

}  // namespace

TopKSampler::TopKSampler(uint64_t count, double share, uint64_t seed)
    : count_(count), share_(share), random_(seed) {
  LH_CHECK(count > 0);
  sample_.reserve(std::min<uint64_t>(count, kTopKSample));
  next_ = NextPlace();
}

// One element from each of kTopKSample stretches of equal length: even over the tensor, never in step with
// it.
uint64_t TopKSampler::NextPlace() {
  const uint64_t i = sample_.size();
  if (count_ <= kTopKSample || i == kTopKSample) return i == kTopKSample ? count_ : i;
  const uint64_t first = count_ * i / kTopKSample;
  const uint64_t end = count_ * (i + 1) / kTopKSample;
  return first + random_.Below(end - first);
}

void TopKSampler::Add(float value) {
  sample_.push_back(MagnitudeBits(value));
  next_ = NextPlace();
}

float TopKSampler::Threshold() {
  LH_CHECK_OP(next_, ==, count_);
  const auto size = static_cast<double>(sample_.size());
  const auto kept = static_cast<size_t>(std::clamp(std::ceil(share_ * size), 1.0, size));
  return std::bit_cast<float>(KeptMagnitude(sample_, kept));
}

float TopKThreshold(std::span<const float> values, double share, uint64_t seed) {
  TopKSampler sampler(values.size(), share, seed);
  while (sampler.next() < values.size()) sampler.Add(values[sampler.next()]);
  return sampler.Threshold();
}

uint32_t SelectTopK(std::span<const float> values, float threshold, uint32_t capacity, std::span<float> out) {
  LH_CHECK_OP(values.size(), ==, out.size());
  const uint32_t least = LeastMagnitude(threshold);
  uint32_t selected = 0;
  for (size_t i = 0; i < values.size(); ++i) {  // no branches: which ones travel is hard to guess
    const bool travels = MagnitudeBits(values[i]) >= least;
    out[i] = travels ? values[i] : 0.0f;
    selected += travels ? 1 : 0;
  }
  if (selected <= capacity) return selected;
  KeepLargest(capacity, out);
  return capacity;
}

bool AllFinite(std::span<const float> values) {
  const Eigen::Map<const Eigen::ArrayXf> in(values.data(), static_cast<Eigen::Index>(values.size()));
  return (0 * in).sum() == 0;  // infinity and NaN are NaN times zero
}

}  // namespace longhaul::codec
