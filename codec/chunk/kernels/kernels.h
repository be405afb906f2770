// The loops between float32 and the element types of the wire, one table of functions per instruction set.
//
// All tables give bit-identical results: the same noise per element, the same order of operations, no fused
// multiply-add (codec is compiled with -ffp-contract=off). So it does not matter which machine computes.
// AVX-512-BF16 is left alone on purpose: it flushes subnormals and cannot round stochastically.
//
// Pointers may be unaligned; in and out do not overlap. Arithmetic is that of IEEE 754 with subnormals.
#pragma once

#include <cstddef>
#include <cstdint>

namespace longhaul::codec {

// How a value that lies between two codes becomes one of them.
struct Rounding {
  bool stochastic = false;  // up with the probability of its distance from below: unbiased; else nearest even
  uint64_t seed = 0;        // of the noise; element i of the call always gets the same noise
  static Rounding Nearest() { return {}; }
  static Rounding Stochastic(uint64_t seed) { return {true, seed}; }
};

// What a decoded value v does to its place.
enum class Apply : uint8_t {
  kSet,    // out = v
  kScale,  // out = weight * v
  kAdd,    // out += weight * v
};

// What a sender has to know of a chunk before it encodes it.
struct Survey {
  uint32_t largest_fresh = 0;  // magnitude among `fresh`, as max_magnitude has it
  uint32_t largest = 0;        // and among the sums
  uint32_t selected = 0;       // sums whose magnitude is at least `least`
  float energy = 0;            // of these: the sum of their squares
  bool operator==(const Survey&) const = default;
};
// Of the sums fresh + kept, or fresh - kept; without `kept`, of `fresh` as it is.
struct SurveyOf {
  const float* fresh;
  const float* kept = nullptr;
  bool subtract = false;
  uint32_t least = 1;  // bits of a magnitude; 1: all but zeros
};

struct Kernels {
  const char* name;

  // float32 to codes. A finite value stays finite: what is too large becomes the largest finite code. NaN
  // becomes the quiet NaN of its sign, infinity stays. Subnormal codes are used.
  void (*encode_bfloat16)(const float* in, size_t n, Rounding rounding, uint8_t* out);
  void (*encode_float16)(const float* in, size_t n, Rounding rounding, uint8_t* out);
  // Codes -127..127 of in / scale. REQUIRES: finite values, scale finite and > 0.
  void (*encode_int8)(const float* in, size_t n, float scale, Rounding rounding, uint8_t* out);

  // Codes to float32, exactly (int8: scale * code, rounded once).
  void (*decode_float32)(const uint8_t* in, size_t n, Apply apply, float weight, float* out);
  void (*decode_bfloat16)(const uint8_t* in, size_t n, Apply apply, float weight, float* out);
  void (*decode_float16)(const uint8_t* in, size_t n, Apply apply, float weight, float* out);
  void (*decode_int8)(const uint8_t* in, size_t n, float scale, Apply apply, float weight, float* out);

  // The largest magnitude as the bits of a float, sign cleared. From 0x7f800000 on something is not finite.
  uint32_t (*max_magnitude)(const float* in, size_t n);
  // Elements that are not zero.
  size_t (*count_nonzero)(const float* in, size_t n);
  // In one pass. Squares are added in eight lanes, then as scalar::FinishSurvey has it.
  Survey (*survey)(const SurveyOf& of, size_t n);
};

inline constexpr uint32_t kInfinityBits = 0x7f800000;

// Plain loops: every machine has them, and the others are tested against them.
const Kernels& PlainKernels();
// AVX2 and F16C; null where the processor (or the operating system) lacks them.
const Kernels* Avx2Kernels();
// The fastest that this machine has.
const Kernels& BestKernels();

}  // namespace longhaul::codec
