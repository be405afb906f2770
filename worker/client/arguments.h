// What the public API checks of its arguments before anything else sees them.
#pragma once

#include <cstdint>
#include <span>

#include "longhaul/options.h"
#include "longhaul/status.h"

namespace longhaul::worker {

// kInvalidArgument, which names the option, its value or its range.
Status CheckOptions(const ConnectOptions& options);
Status CheckWeight(const PushOptions& options);
Status CheckScores(std::span<const float> scores, uint64_t count);
// A span that has a length and no memory.
Status CheckMemory(std::span<const float> values);
// Of a tensor: memory, and numbers that are finite.
Status CheckInitial(std::span<const float> values);
// Of a status that the server is to learn.
Status CheckCode(const Status& why);
bool Overlap(std::span<const float> a, std::span<const float> b);

}  // namespace longhaul::worker
