#include "codec/chunk/quantize.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "codec/chunk/kernels/scalar.h"

namespace longhaul::codec {
namespace {

constexpr uint16_t kNaNScale = scalar::kBfloat16NaN;
// The largest whose product with 127 is finite.
constexpr uint32_t kMaxScale = 0x7c01;

// splitmix64's finaliser (Steele, Lea, Flood).
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

void QuantizeInt8(std::span<const float> values, uint16_t scale, Rounding rounding, uint8_t* out,
                  const Kernels& kernels) {
  const float step = Bfloat16ToFloat(scale);
  if (step == 0) {
    std::fill_n(out, values.size(), uint8_t{0});
  } else if (step > 0 && std::bit_cast<uint32_t>(step) < kInfinityBits) {
    kernels.encode_int8(values.data(), values.size(), step, rounding, out);
  } else {
    std::fill_n(out, values.size(), uint8_t{1});  // times NaN; zeros could be left out of a sparse chunk
  }
}

}  // namespace

uint64_t RoundingSeed(uint64_t job_seed, uint32_t rank, uint32_t key, uint64_t round) {
  return Mix(Mix(Mix(job_seed) ^ (uint64_t{rank} << 32 | key)) ^ round);
}

uint64_t ChunkRoundingSeed(uint64_t rounding_seed, uint32_t chunk) { return Mix(rounding_seed ^ chunk); }

float Bfloat16ToFloat(uint16_t bits) { return scalar::FromBfloat16(bits); }

uint16_t Int8Scale(std::span<const float> values, const Kernels& kernels) {
  const uint32_t largest = kernels.max_magnitude(values.data(), values.size());
  if (largest >= kInfinityBits) return kNaNScale;
  if (largest == 0) return 0;
  const auto step = std::bit_cast<uint32_t>(std::bit_cast<float>(largest) / scalar::kInt8Max);
  return static_cast<uint16_t>(std::clamp<uint32_t>((step + 0xffff) >> 16, 1, kMaxScale));
}

void Quantize(DType dtype, std::span<const float> values, uint16_t scale, Rounding rounding,
              MutableByteSpan out, const Kernels& kernels) {
  LH_CHECK_OP(out.size(), ==, values.size() * DTypeSize(dtype));
  switch (dtype) {
    case DType::kFloat32:
      if (!values.empty()) std::memcpy(out.data(), values.data(), out.size());
      return;
    case DType::kBFloat16:
      return kernels.encode_bfloat16(values.data(), values.size(), rounding, out.data());
    case DType::kFloat16:
      return kernels.encode_float16(values.data(), values.size(), rounding, out.data());
    case DType::kInt8:
      return QuantizeInt8(values, scale, rounding, out.data(), kernels);
  }
  LH_CHECK(false);
}

void Dequantize(DType dtype, ByteSpan codes, uint16_t scale, Apply apply, float weight, std::span<float> out,
                const Kernels& kernels) {
  LH_CHECK_OP(codes.size(), ==, out.size() * DTypeSize(dtype));
  const uint8_t* in = codes.data();
  switch (dtype) {
    case DType::kFloat32:
      return kernels.decode_float32(in, out.size(), apply, weight, out.data());
    case DType::kBFloat16:
      return kernels.decode_bfloat16(in, out.size(), apply, weight, out.data());
    case DType::kFloat16:
      return kernels.decode_float16(in, out.size(), apply, weight, out.data());
    case DType::kInt8:
      return kernels.decode_int8(in, out.size(), Bfloat16ToFloat(scale), apply, weight, out.data());
  }
  LH_CHECK(false);
}

std::span<const float> AsArrived(DType dtype, std::span<const float> values, std::vector<float>* room) {
  if (dtype == DType::kFloat32) return values;
  const size_t bytes = values.size() * DTypeSize(dtype);
  room->resize(values.size() + (bytes + sizeof(float) - 1) / sizeof(float));  // the codes are behind
  const std::span<float> out = std::span(*room).first(values.size());
  const MutableByteSpan codes(reinterpret_cast<uint8_t*>(room->data() + values.size()), bytes);
  Quantize(dtype, values, 0, Rounding::Nearest(), codes);
  Dequantize(dtype, codes, 0, Apply::kSet, 1, out);
  return out;
}

}  // namespace longhaul::codec
