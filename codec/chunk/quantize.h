// From float32 to the element types of the wire and back.
//
//   float32   as it is
//   bfloat16  8 exponent bits, 7 of the significand: the range of float32, steps of 2^-8 relative
//   float16   IEEE 754 binary16: up to 65504, steps of 2^-11 relative, of 2^-24 below 2^-14
//   int8      -127..127 times the scale of the chunk, which is the chunk's largest magnitude / 127, as
//   bfloat16
//             rounded up
//   int4      the same with -7..7
//   int2      one of two magnitudes of the chunk, and a sign
//
// int2's scale is a bfloat16 whose last four bits are taken for a number s of their own: its magnitudes are
// 16 and s times the rest. Rounded to the nearest they are the means of the chunk's small and of its large
// elements (Lloyd's, of 2 levels), so what a code misses is never more than what there was, whatever the
// elements are. Rounded stochastically they are the largest magnitude and zero (Wen et al. 2017, TernGrad).
//
// A sender that remembers rounds int4 and int2 to the nearest, all others stochastically (RoundingOf):
// what a code misses is added to the next elements. Stochastic rounding misses more than there was where the
// elements are much smaller than a step, so the memory would grow without an end.
//
// Stochastic rounding takes the code above with the probability of the distance from the code below, so the
// mean over many seeds is the value itself (to 2^-16 of a step with bfloat16, 2^-13 with float16's normal and
// 2^-24 with its subnormal numbers and int8). What a code misses, the sender's memory gets, as with any loss.
//
// A finite value stays finite: beyond the range it becomes the largest code. NaN and infinity survive in
// bfloat16 and float16; the others have no codes for them, so one of them makes the whole chunk NaN.
//
// Here codes of int8, int4 and int2 are a byte each, the multiple of a step; codec/chunk/bits.h packs them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "codec/chunk/kernels/kernels.h"
#include "longhaul/tensor.h"

namespace longhaul::codec {

// The noise of one chunk: different for every rank, tensor, round and chunk, the same on every machine.
// A tensor's seed for a round serves for all its chunks.
uint64_t RoundingSeed(uint64_t job_seed, uint32_t rank, uint32_t key, uint64_t round);
uint64_t ChunkRoundingSeed(uint64_t rounding_seed, uint32_t chunk);

// bfloat16 bits as float32.
float Bfloat16ToFloat(uint16_t bits);

// How a sender's chunk is rounded; `seed`: of the chunk.
Rounding RoundingOf(DType dtype, bool remembers, uint64_t seed);

// The larger magnitude of int2 in steps, and the smaller.
inline constexpr int8_t kInt2Large = 16;
constexpr int8_t Int2Small(uint16_t scale) { return static_cast<int8_t>(scale & 0xf); }

// Types of integer codes have a scale.
constexpr bool HasScale(DType dtype) { return DTypeBits(dtype) <= 8; }
// The scale of a chunk's codes. int8, int4: as bfloat16 bits the smallest with which every value has a code
// (but the largest code of it stays finite). int2: see above. Zero when all values are, and for other types;
// NaN when a value is not finite.
uint16_t ScaleOf(DType dtype, std::span<const float> values, Rounding rounding,
                 const Kernels& kernels = BestKernels());

// Bytes of a code here.
constexpr size_t CodeSize(DType dtype) { return HasScale(dtype) ? 1 : DTypeBits(dtype) / 8; }

// Writes the codes of `values`; `scale` counts for types that have one. int2 has no code for zero unless its
// smaller magnitude is: the code 0 stands for it, which travels by not being in a sparse chunk.
// REQUIRES: out.size() == values.size() * CodeSize(dtype), a known dtype.
void Quantize(DType dtype, std::span<const float> values, uint16_t scale, Rounding rounding,
              MutableByteSpan out, const Kernels& kernels = BestKernels());

// Applies the codes' values to `out`. Exact, but that a scale's products are rounded once.
// REQUIRES: codes.size() == out.size() * CodeSize(dtype), a known dtype.
void Dequantize(DType dtype, ByteSpan codes, uint16_t scale, Apply apply, float weight, std::span<float> out,
                const Kernels& kernels = BestKernels());

// What arrives of `values` that travel in a type, rounded to the nearest: of float32 `values` themselves,
// else a span of *room. REQUIRES: a type of 16 bits or more.
std::span<const float> AsArrived(DType dtype, std::span<const float> values, std::vector<float>* room);

}  // namespace longhaul::codec
