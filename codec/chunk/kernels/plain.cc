#include "codec/chunk/kernels/kernels.h"
#include "codec/chunk/kernels/scalar.h"

namespace longhaul::codec {
namespace {

void EncodeBfloat16(const float* in, size_t n, Rounding rounding, uint8_t* out) {
  const scalar::NoiseKey key(rounding.seed);
  for (size_t i = 0; i < n; ++i) {
    const uint32_t noise = scalar::Noise(key, static_cast<uint32_t>(i));
    scalar::Store(out, i, scalar::ToBfloat16(in[i], rounding.stochastic, noise));
  }
}

void EncodeFloat16(const float* in, size_t n, Rounding rounding, uint8_t* out) {
  const scalar::NoiseKey key(rounding.seed);
  for (size_t i = 0; i < n; ++i) {
    const uint32_t noise = scalar::Noise(key, static_cast<uint32_t>(i));
    scalar::Store(out, i, scalar::ToFloat16(in[i], rounding.stochastic, noise));
  }
}

void EncodeInt8(const float* in, size_t n, float scale, Rounding rounding, uint8_t* out) {
  const scalar::NoiseKey key(rounding.seed);
  for (size_t i = 0; i < n; ++i) {
    const uint32_t noise = scalar::Noise(key, static_cast<uint32_t>(i));
    scalar::Store(out, i, scalar::ToInt8(in[i], scale, rounding.stochastic, noise));
  }
}

// One loop per way of applying; value(i) is the decoded element.
template <typename Value>
void Decode(size_t n, Apply apply, float weight, float* out, Value value) {
  switch (apply) {
    case Apply::kSet:
      for (size_t i = 0; i < n; ++i) scalar::Put<Apply::kSet>(value(i), weight, out + i);
      return;
    case Apply::kScale:
      for (size_t i = 0; i < n; ++i) scalar::Put<Apply::kScale>(value(i), weight, out + i);
      return;
    case Apply::kAdd:
      for (size_t i = 0; i < n; ++i) scalar::Put<Apply::kAdd>(value(i), weight, out + i);
      return;
  }
}

void DecodeFloat32(const uint8_t* in, size_t n, Apply apply, float weight, float* out) {
  if (apply == Apply::kSet) {
    std::memcpy(out, in, n * sizeof(float));
    return;
  }
  Decode(n, apply, weight, out, [in](size_t i) { return scalar::Load<float>(in, i); });
}

void DecodeBfloat16(const uint8_t* in, size_t n, Apply apply, float weight, float* out) {
  Decode(n, apply, weight, out,
         [in](size_t i) { return scalar::FromBfloat16(scalar::Load<uint16_t>(in, i)); });
}

void DecodeFloat16(const uint8_t* in, size_t n, Apply apply, float weight, float* out) {
  Decode(n, apply, weight, out,
         [in](size_t i) { return scalar::FromFloat16(scalar::Load<uint16_t>(in, i)); });
}

void DecodeInt8(const uint8_t* in, size_t n, float scale, Apply apply, float weight, float* out) {
  Decode(n, apply, weight, out,
         [in, scale](size_t i) { return scale * static_cast<float>(scalar::Load<int8_t>(in, i)); });
}

uint32_t MaxMagnitude(const float* in, size_t n) {
  uint32_t largest = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(in[i]) & scalar::kMagnitude;
    if (magnitude > largest) largest = magnitude;
  }
  return largest;
}

size_t CountNonzero(const float* in, size_t n) {
  size_t nonzero = 0;
  for (size_t i = 0; i < n; ++i) nonzero += in[i] != 0.0f ? 1 : 0;
  return nonzero;
}

Survey SurveyChunk(const SurveyOf& of, size_t n) {
  Survey survey;
  float lanes[scalar::kSurveyLanes] = {};
  size_t i = 0;
  for (; i + scalar::kSurveyLanes <= n; i += scalar::kSurveyLanes) {
    for (size_t j = 0; j < scalar::kSurveyLanes; ++j) lanes[j] += scalar::SurveyOne(of, i + j, &survey);
  }
  scalar::FinishSurvey(of, i, n, lanes, &survey);
  return survey;
}

}  // namespace

const Kernels& PlainKernels() {
  static constexpr Kernels kTable = {.name = "plain",
                                     .encode_bfloat16 = EncodeBfloat16,
                                     .encode_float16 = EncodeFloat16,
                                     .encode_int8 = EncodeInt8,
                                     .decode_float32 = DecodeFloat32,
                                     .decode_bfloat16 = DecodeBfloat16,
                                     .decode_float16 = DecodeFloat16,
                                     .decode_int8 = DecodeInt8,
                                     .max_magnitude = MaxMagnitude,
                                     .count_nonzero = CountNonzero,
                                     .survey = SurveyChunk};
  return kTable;
}

const Kernels& BestKernels() {
  static const Kernels& best = Avx2Kernels() != nullptr ? *Avx2Kernels() : PlainKernels();
  return best;
}

}  // namespace longhaul::codec
