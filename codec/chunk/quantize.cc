#include "codec/chunk/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "codec/chunk/kernels/scalar.h"

namespace longhaul::codec {
namespace {

constexpr uint16_t kNaNScale = scalar::kBfloat16NaN;
constexpr int8_t kInt4Max = 7;
constexpr uint16_t kInt2StepMask = 0xfff0;

// The multiple of the step that the largest value becomes.
float LargestCode(DType dtype) {
  if (dtype == DType::kInt2) return kInt2Large;
  return dtype == DType::kInt4 ? kInt4Max : scalar::kInt8Max;
}

float StepOf(DType dtype, uint16_t scale) {
  return Bfloat16ToFloat(dtype == DType::kInt2 ? scale & kInt2StepMask : scale);
}

// splitmix64's finaliser (Steele, Lea, Flood).
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

// A step cut to `unit` (in bits of a float), so that `code` of it are finite; at least one unit.
uint16_t Cut(uint32_t step, uint32_t unit, float code) {
  const float most = std::numeric_limits<float>::max() / code;
  return static_cast<uint16_t>(std::clamp(step, unit, std::bit_cast<uint32_t>(most)) / unit * unit >> 16);
}
constexpr uint32_t kInt2Unit = 1u << 20;

// Two magnitudes with the least squares to `magnitudes`, which are their means (Lloyd's iteration).
uint16_t Int2Means(std::span<const float> magnitudes) {
  constexpr int kIterations = 4;
  double all = 0;
  for (const float m : magnitudes) all += static_cast<double>(m);
  double small = 0, large = 0, threshold = all / static_cast<double>(magnitudes.size());
  for (int i = 0; i < kIterations; ++i) {
    double sums[2] = {};
    size_t counts[2] = {};
    for (const float m : magnitudes) {
      const bool is_large = static_cast<double>(m) >= threshold;
      sums[is_large] += static_cast<double>(m);
      ++counts[is_large];
    }
    large = sums[1] / static_cast<double>(std::max<size_t>(counts[1], 1));
    small = counts[0] > 0 ? sums[0] / static_cast<double>(counts[0]) : large;
    threshold = (small + large) / 2;
  }
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(large / kInt2Large));
  const uint16_t step = Cut(bits + kInt2Unit / 2, kInt2Unit, kInt2Large);
  const double steps = std::round(small / static_cast<double>(Bfloat16ToFloat(step)));
  return static_cast<uint16_t>(step | static_cast<uint16_t>(std::clamp(steps, 0.0, 15.0)));
}

// Zeros travel in a dense chunk as the smaller magnitude, in a sparse one not at all; and it will be dense if
// most are not zero.
uint16_t Int2Scale(std::span<const float> values) {
  std::vector<float> magnitudes;
  for (const float v : values) {
    if (v != 0) magnitudes.push_back(std::abs(v));
  }
  if (2 * magnitudes.size() > values.size()) magnitudes.resize(values.size(), 0.0f);
  return Int2Means(magnitudes);
}

void EncodeInt2(std::span<const float> values, uint16_t scale, float step, Rounding rounding, uint8_t* out) {
  const scalar::NoiseKey key(rounding.seed);
  const auto small = static_cast<float>(Int2Small(scale));
  const float between = static_cast<float>(kInt2Large) - small;
  for (size_t i = 0; i < values.size(); ++i) {
    const float fraction = (std::abs(values[i]) / step - small) / between;
    const bool large =
        scalar::RoundsUp(rounding.stochastic, scalar::Noise(key, static_cast<uint32_t>(i)), fraction, 1);
    int code = large ? int{kInt2Large} : int{Int2Small(scale)};
    if (values[i] == 0) code = 0;
    out[i] = static_cast<uint8_t>(values[i] < 0 ? -code : code);
  }
}

void EncodeSteps(DType dtype, std::span<const float> values, uint16_t scale, Rounding rounding, uint8_t* out,
                 const Kernels& kernels) {
  const float step = StepOf(dtype, scale);
  if (step == 0) {
    std::fill_n(out, values.size(), uint8_t{0});
  } else if (!(step > 0 && std::bit_cast<uint32_t>(step) < kInfinityBits)) {
    // Times NaN; zeros could be left out of a sparse chunk.
    std::fill_n(out, values.size(), static_cast<uint8_t>(dtype == DType::kInt2 ? kInt2Large : 1));
  } else if (dtype == DType::kInt2) {
    EncodeInt2(values, scale, step, rounding, out);
  } else {
    kernels.encode_int8(values.data(), values.size(), step, rounding, out);
    if (dtype == DType::kInt8) return;
    for (uint8_t& code :
         std::span(out, values.size()))  // a step's own rounding may leave the largest above 7
      code = static_cast<uint8_t>(std::clamp<int8_t>(static_cast<int8_t>(code), -kInt4Max, kInt4Max));
  }
}

}  // namespace

uint64_t RoundingSeed(uint64_t job_seed, uint32_t rank, uint32_t key, uint64_t round) {
  return Mix(Mix(Mix(job_seed) ^ (uint64_t{rank} << 32 | key)) ^ round);
}

uint64_t ChunkRoundingSeed(uint64_t rounding_seed, uint32_t chunk) { return Mix(rounding_seed ^ chunk); }

float Bfloat16ToFloat(uint16_t bits) { return scalar::FromBfloat16(bits); }

Rounding RoundingOf(DType dtype, bool remembers, uint64_t seed) {
  return remembers && DTypeBits(dtype) < 8 ? Rounding::Nearest() : Rounding::Stochastic(seed);
}

uint16_t ScaleOf(DType dtype, std::span<const float> values, Rounding rounding, const Kernels& kernels) {
  if (!HasScale(dtype)) return 0;
  const uint32_t largest = kernels.max_magnitude(values.data(), values.size());
  if (largest >= kInfinityBits) return kNaNScale;
  if (largest == 0) return 0;
  if (dtype == DType::kInt2 && !rounding.stochastic) return Int2Scale(values);
  const uint32_t unit = dtype == DType::kInt2 ? kInt2Unit : 1u << 16;
  const float code = LargestCode(dtype);
  const auto step = std::bit_cast<uint32_t>(std::bit_cast<float>(largest) / code);
  return Cut(step + (unit - 1), unit, code);
}

void Quantize(DType dtype, std::span<const float> values, uint16_t scale, Rounding rounding,
              MutableByteSpan out, const Kernels& kernels) {
  LH_CHECK_OP(out.size(), ==, values.size() * CodeSize(dtype));
  switch (dtype) {
    case DType::kFloat32:
      if (!values.empty()) std::memcpy(out.data(), values.data(), out.size());
      return;
    case DType::kBFloat16:
      return kernels.encode_bfloat16(values.data(), values.size(), rounding, out.data());
    case DType::kFloat16:
      return kernels.encode_float16(values.data(), values.size(), rounding, out.data());
    case DType::kInt8:
    case DType::kInt4:
    case DType::kInt2:
      return EncodeSteps(dtype, values, scale, rounding, out.data(), kernels);
  }
  LH_CHECK(false);
}

void Dequantize(DType dtype, ByteSpan codes, uint16_t scale, Apply apply, float weight, std::span<float> out,
                const Kernels& kernels) {
  LH_CHECK_OP(codes.size(), ==, out.size() * CodeSize(dtype));
  const uint8_t* in = codes.data();
  switch (dtype) {
    case DType::kFloat32:
      return kernels.decode_float32(in, out.size(), apply, weight, out.data());
    case DType::kBFloat16:
      return kernels.decode_bfloat16(in, out.size(), apply, weight, out.data());
    case DType::kFloat16:
      return kernels.decode_float16(in, out.size(), apply, weight, out.data());
    case DType::kInt8:
    case DType::kInt4:
    case DType::kInt2:
      return kernels.decode_int8(in, out.size(), StepOf(dtype, scale), apply, weight, out.data());
  }
  LH_CHECK(false);
}

std::span<const float> AsArrived(DType dtype, std::span<const float> values, std::vector<float>* room) {
  if (dtype == DType::kFloat32) return values;
  const size_t bytes = values.size() * CodeSize(dtype);
  room->resize(values.size() + (bytes + sizeof(float) - 1) / sizeof(float));  // the codes are behind
  const std::span<float> out = std::span(*room).first(values.size());
  const MutableByteSpan codes(reinterpret_cast<uint8_t*>(room->data() + values.size()), bytes);
  Quantize(dtype, values, 0, Rounding::Nearest(), codes);
  Dequantize(dtype, codes, 0, Apply::kSet, 1, out);
  return out;
}

}  // namespace longhaul::codec
