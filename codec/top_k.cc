#include "codec/top_k.h"

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

// One element from each of kTopKSample stretches of equal length: even over the tensor, never in step with
// it.
std::vector<uint32_t> SampleMagnitudes(std::span<const float> values, uint64_t seed) {
  std::vector<uint32_t> sample;
  if (values.size() <= kTopKSample) {
    for (const float v : values) sample.push_back(MagnitudeBits(v));
    return sample;
  }
  Random random(seed);
  sample.reserve(kTopKSample);
  for (uint64_t i = 0; i < kTopKSample; ++i) {
    const uint64_t first = values.size() * i / kTopKSample;
    const uint64_t end = values.size() * (i + 1) / kTopKSample;
    sample.push_back(MagnitudeBits(values[first + random.Below(end - first)]));
  }
  return sample;
}

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

float TopKThreshold(std::span<const float> values, double share, uint64_t seed) {
  LH_CHECK(!values.empty());
  std::vector<uint32_t> sample = SampleMagnitudes(values, seed);
  const auto size = static_cast<double>(sample.size());
  const auto kept = static_cast<size_t>(std::clamp(std::ceil(share * size), 1.0, size));
  return std::bit_cast<float>(KeptMagnitude(sample, kept));
}

uint32_t SelectTopK(std::span<const float> values, float threshold, uint32_t capacity, std::span<float> out) {
  LH_CHECK_OP(values.size(), ==, out.size());
  // Zero has the smallest magnitude and never travels.
  const uint32_t least = std::max(MagnitudeBits(threshold), 1u);
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

}  // namespace longhaul::codec
