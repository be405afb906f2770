// The loops of reduce.h, once for every instruction set: portable, AVX2, AVX-512 (Highway's AVX3), NEON.
//
// The fastest that the machine has is chosen at the first call. Not for callers of reduce.h: nothing is
// checked here.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "longhaul/offload.h"

namespace longhaul::offload {

// REQUIRES: count > 0, an operation that the type has, bytes a multiple of the element's.
void RunReduce(ReduceOp op, DataType type, const std::byte* const* sources, size_t count, size_t bytes,
               std::byte* out);
// into[i] /= participants.
void RunDivide(DataType type, std::byte* into, size_t bytes, size_t participants);

// Names of the instruction sets that kernels are made for and this machine has, the best first.
std::vector<std::string_view> ReduceTargets();
// For tests and benches: from now on all threads use this one; empty: the best. False: it is none of
// ReduceTargets().
bool UseReduceTarget(std::string_view name);

}  // namespace longhaul::offload
