// One element at a time: what every kernel does for its last few elements, and the plain ones for all.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codec/chunk/kernels/kernels.h"

namespace longhaul::codec::scalar {

// Chance by counter: the noise of element i depends on the key and i alone, so it can be computed in any
// order and any number at a time. MurmurHash3's finaliser (Appleby) over a Weyl sequence, keyed twice.
struct NoiseKey {
  explicit NoiseKey(uint64_t seed)
      : first(static_cast<uint32_t>(seed)), second(static_cast<uint32_t>(seed >> 32)) {}
  uint32_t first;
  uint32_t second;
};
inline constexpr uint32_t kWeyl = 0x9e3779b9;
inline constexpr uint32_t kMix1 = 0x85ebca6b;
inline constexpr uint32_t kMix2 = 0xc2b2ae35;

inline uint32_t Noise(const NoiseKey& key, uint32_t i) {
  uint32_t x = i * kWeyl + key.first;
  x ^= x >> 16;
  x *= kMix1;
  x ^= key.second;
  x ^= x >> 13;
  x *= kMix2;
  return x ^ x >> 16;
}
// Uniform in [0, 1), in steps of 2^-24: every one of them is a float.
inline constexpr float kNoiseStep = 0x1p-24f;
inline float UniformOf(uint32_t noise) { return static_cast<float>(noise >> 8) * kNoiseStep; }

inline constexpr uint32_t kMagnitude = 0x7fffffff;
inline constexpr uint16_t kBfloat16NaN = 0x7fc0;
inline constexpr uint16_t kBfloat16Max = 0x7f7f;
inline constexpr uint16_t kFloat16NaN = 0x7e00;
inline constexpr uint16_t kFloat16Infinity = 0x7c00;
inline constexpr uint16_t kFloat16Max = 0x7bff;
inline constexpr uint32_t kFloat16MinNormal = 0x38800000;     // 2^-14, as float32
inline constexpr uint32_t kFloat16Rebias = (127 - 15) << 10;  // between the exponents of float32 and float16
inline constexpr float kInt8Max = 127.0f;

// What is added below the cut, so that cutting rounds: noise, or half a unit with ties to even.
inline uint32_t Carry(bool stochastic, uint32_t noise, uint32_t magnitude, int cut_bits) {
  if (stochastic) return noise >> (32 - cut_bits);
  return (1u << (cut_bits - 1)) - 1 + (magnitude >> cut_bits & 1);
}

// Whether the fraction 0..1 above `whole` becomes the next integer.
inline bool RoundsUp(bool stochastic, uint32_t noise, float fraction, uint32_t whole) {
  if (stochastic) return fraction > UniformOf(noise);
  return fraction > 0.5f || (fraction == 0.5f && (whole & 1) != 0);
}

inline uint16_t ToBfloat16(float value, bool stochastic, uint32_t noise) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & kMagnitude;
  uint32_t code = (magnitude + Carry(stochastic, noise, magnitude, 16)) >> 16;
  if (code > kBfloat16Max) code = kBfloat16Max;
  if (magnitude == kInfinityBits) code = kInfinityBits >> 16;
  if (magnitude > kInfinityBits) code = kBfloat16NaN;
  return static_cast<uint16_t>(sign | code);
}

inline uint16_t ToFloat16(float value, bool stochastic, uint32_t noise) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & kMagnitude;
  if (magnitude > kInfinityBits) return static_cast<uint16_t>(sign | kFloat16NaN);
  if (magnitude == kInfinityBits) return static_cast<uint16_t>(sign | kFloat16Infinity);
  if (magnitude < kFloat16MinNormal) {
    // In units of the smallest subnormal; the product is exact.
    const float units = std::bit_cast<float>(magnitude) * 0x1p24f;
    const auto whole = static_cast<uint32_t>(units);
    const bool up = RoundsUp(stochastic, noise, units - static_cast<float>(whole), whole);
    return static_cast<uint16_t>(sign | (whole + (up ? 1 : 0)));
  }
  uint32_t code = ((magnitude + Carry(stochastic, noise, magnitude, 13)) >> 13) - kFloat16Rebias;
  if (code > kFloat16Max) code = kFloat16Max;
  return static_cast<uint16_t>(sign | code);
}

inline int8_t ToInt8(float value, float scale, bool stochastic, uint32_t noise) {
  float units = value / scale;
  if (units > kInt8Max) units = kInt8Max;
  if (units < -kInt8Max) units = -kInt8Max;
  const float below = std::floor(units);
  const auto whole = static_cast<int32_t>(below);
  const bool up = RoundsUp(stochastic, noise, units - below, static_cast<uint32_t>(whole));
  return static_cast<int8_t>(whole + (up ? 1 : 0));
}

inline float FromBfloat16(uint16_t code) { return std::bit_cast<float>(static_cast<uint32_t>(code) << 16); }

inline float FromFloat16(uint16_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x8000) << 16;
  const uint32_t magnitude = code & 0x7fff;
  uint32_t bits = (magnitude + kFloat16Rebias) << 13;
  if (magnitude >= kFloat16Infinity) {
    bits = kInfinityBits | magnitude << 13;
    if (magnitude > kFloat16Infinity) bits |= 0x400000;  // a NaN is quiet afterwards, as F16C has it
    bits &= kMagnitude;
  } else if (magnitude < 0x400) {
    bits = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  }
  return std::bit_cast<float>(sign | bits);
}

template <typename T>
T Load(const uint8_t* in, size_t i) {
  T value;
  std::memcpy(&value, in + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void Store(uint8_t* out, size_t i, T value) {
  std::memcpy(out + i * sizeof(T), &value, sizeof(T));
}

template <Apply kApply>
void Put(float value, float weight, float* place) {
  if constexpr (kApply == Apply::kSet) {
    *place = value;
  } else if constexpr (kApply == Apply::kScale) {
    *place = weight * value;
  } else {
    *place += weight * value;
  }
}

inline constexpr size_t kSurveyLanes = 8;

// The square of one sum if it is selected, else zero.
inline float SurveyOne(const SurveyOf& of, size_t i, Survey* survey) {
  const float fresh = of.fresh[i];
  float sum = fresh;
  if (of.kept != nullptr) sum = of.subtract ? fresh - of.kept[i] : fresh + of.kept[i];
  const uint32_t magnitude = std::bit_cast<uint32_t>(sum) & kMagnitude;
  survey->largest_fresh = std::max(survey->largest_fresh, std::bit_cast<uint32_t>(fresh) & kMagnitude);
  survey->largest = std::max(survey->largest, magnitude);
  const bool selected = magnitude >= of.least;
  survey->selected += selected ? 1 : 0;
  return selected ? sum * sum : 0.0f;
}

// The last few elements, from i on, and the sum over the lanes: lane j and lane j + 4 are one, to which four
// more elements are added if there are as many; then (0 + 2) + (1 + 3), and the rest one by one.
inline void FinishSurvey(const SurveyOf& of, size_t i, size_t n, float* lanes, Survey* survey) {
  for (size_t j = 0; j < 4; ++j) lanes[j] += lanes[j + 4];
  if (n - i >= 4) {
    for (size_t j = 0; j < 4; ++j) lanes[j] += SurveyOne(of, i++, survey);
  }
  survey->energy = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
  for (; i < n; ++i) survey->energy += SurveyOne(of, i, survey);
}

}  // namespace longhaul::codec::scalar
