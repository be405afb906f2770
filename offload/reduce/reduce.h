// Element by element: K sources become one.
#pragma once

#include <cstddef>
#include <span>

#include "longhaul/offload.h"
#include "longhaul/status.h"

namespace longhaul::offload {

// out[i] = op over sources k of sources[k][i], in the order of the list (deterministic). `out` may be one of
// the sources. kAverage is the sum here. Errors: kInvalidArgument for no source, or an operation that the
// type does not have.
Status Reduce(ReduceOp op, DataType type, std::span<const std::byte* const> sources, size_t elements,
              std::byte* out);

// into[i] = into[i] op data[i]. Errors as above.
Status Accumulate(ReduceOp op, DataType type, std::byte* into, const std::byte* data, size_t elements);

// The last step of an average: into[i] /= participants; nothing for other operations. Errors as above, and
// kInvalidArgument for no participants.
Status Finish(ReduceOp op, DataType type, std::byte* into, size_t elements, size_t participants);

}  // namespace longhaul::offload
