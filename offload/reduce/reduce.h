// Element by element: K sources become one.
//
// Results are bitwise equal on every instruction set (kernels.h), whatever the alignment, and follow the
// order of the list.
//   float32    IEEE 754 in the order of the list, subnormals included; no fused multiply-add.
//   bfloat16,  computed in float32 over all sources of one call, then rounded once, to nearest even; what is too
//   float16    large becomes infinity.
//   int32      sum and product modulo 2^32, as unsigned ones.
//   q32        fixed point: a code c stands for c / 2^f, with an f of the caller's that sums, min and max need not
//              know. INT32_MIN and INT32_MAX mean "out of range" and are sticky: a sum that leaves the range is the
//              end by which it left, and stays there; a source at an end takes the sum there, the first one in the
//              list. So a sum between the two ends is the exact one, whatever the order and the grouping.
// NaN: a result that is NaN is the positive quiet NaN without payload (0x7fc00000, 0x7fc0, 0x7e00). min and
// max are IEEE 754-2019's minimum and maximum: NaN if any source is NaN, and -0 < +0.
//
// |           | sum, average | product | xor | min, max |
// | float32, bfloat16, float16 | x | x | | x |
// | int32     | x            | x       | x   | x        |
// | q32       | x            |         | x   | x        |   (a product needs f)
//
// Elements may be unaligned. Needs the default floating-point environment: nearest even, subnormals not
// flushed. Thread-safe; allocates nothing.
#pragma once

#include <cstddef>
#include <span>

#include "longhaul/offload.h"
#include "longhaul/status.h"

namespace longhaul::offload {

// out[i] = op over sources k of sources[k][i], in one pass. kAverage is the sum here. `out` may be one of the
// sources, and overlaps none of them otherwise. Errors, all kInvalidArgument, nothing written: no source, a
// null pointer where there are elements, an operation that the type does not have.
Status Reduce(ReduceOp op, DataType type, std::span<const std::byte* const> sources, size_t elements,
              std::byte* out);

// into[i] = into[i] op data[i]: Reduce of the two. bfloat16 and float16 are rounded each time. Errors as
// above.
Status Accumulate(ReduceOp op, DataType type, std::byte* into, const std::byte* data, size_t elements);

// The last step of an average: into[i] /= participants; nothing for other operations. int32 and q32 are
// rounded to nearest even; q32's ends stay. Errors as above, and kInvalidArgument for participants
// outside 1..kMaxParticipants.
Status Finish(ReduceOp op, DataType type, std::byte* into, size_t elements, size_t participants);

inline constexpr size_t kMaxParticipants = size_t{1} << 24;  // float32 holds every number up to here

}  // namespace longhaul::offload
