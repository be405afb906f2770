// From float32 to the element types of the wire and back.
//
//   float32   as it is
//   bfloat16  8 exponent bits, 7 of the significand: the range of float32, steps of 2^-8 relative
//   float16   IEEE 754 binary16: up to 65504, steps of 2^-11 relative, of 2^-24 below 2^-14
//   int8      -127..127 times the scale of the chunk, which is the chunk's largest magnitude / 127, as
//   bfloat16
//             rounded up
//
// Stochastic rounding takes the code above with the probability of the distance from the code below, so the
// mean over many seeds is the value itself (to 2^-16 of a step with bfloat16, 2^-13 with float16's normal and
// 2^-24 with its subnormal numbers and int8). What a code misses, the sender's memory gets, as with any loss.
//
// A finite value stays finite: beyond the range it becomes the largest code. NaN and infinity survive in
// bfloat16 and float16; int8 has no codes for them, so one of them makes the whole chunk NaN.
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

// The scale of int8 codes as bfloat16 bits: the smallest with which every value has a code (but 127 of it
// stay finite). Zero when all values are; NaN when one of them is not finite.
uint16_t Int8Scale(std::span<const float> values, const Kernels& kernels = BestKernels());

// Writes the codes of `values`; `scale` (bfloat16 bits) counts for int8 only.
// REQUIRES: out.size() == values.size() * DTypeSize(dtype), a known dtype.
void Quantize(DType dtype, std::span<const float> values, uint16_t scale, Rounding rounding,
              MutableByteSpan out, const Kernels& kernels = BestKernels());

// Applies the codes' values to `out`. Exact, but that int8's products are rounded once.
// REQUIRES: codes.size() == out.size() * DTypeSize(dtype), a known dtype.
void Dequantize(DType dtype, ByteSpan codes, uint16_t scale, Apply apply, float weight, std::span<float> out,
                const Kernels& kernels = BestKernels());

// What arrives of `values` that travel in a type, rounded to the nearest: of float32 `values` themselves,
// else a span of *room. REQUIRES: not int8.
std::span<const float> AsArrived(DType dtype, std::span<const float> values, std::vector<float>* room);

}  // namespace longhaul::codec
