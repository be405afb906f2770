// What the public API checks of its arguments before anything else sees them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "longhaul/options.h"
#include "longhaul/status.h"

namespace longhaul::worker {

// kInvalidArgument, which names the option, its value or its range.
Status CheckOptions(const ConnectOptions& options);
Status CheckWeight(const PushOptions& options);
// That so many workers of this weight can sum it (Client::Push).
Status CheckSummable(std::span<const float> gradient, uint32_t world_size, float weight);
// Those of a part of the tensor, elements first .. first + count - 1, from those of all its elements: cut in
// equal parts as they are, of which each has the highest score that any of its elements had.
std::vector<float> ScoresOf(std::span<const float> scores, uint64_t elements, uint64_t first, uint64_t count);
Status CheckScores(std::span<const float> scores, uint64_t count);
// A span that has a length and no memory.
Status CheckMemory(std::span<const float> values);
// Of a tensor: memory, and numbers that are finite.
Status CheckInitial(std::span<const float> values);
// Of a status that the server is to learn.
Status CheckCode(const Status& why);
bool Overlap(std::span<const float> a, std::span<const float> b);

}  // namespace longhaul::worker
