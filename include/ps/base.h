// Keys, and the numbers of nodes and of groups of nodes.
#pragma once

#include <cstdint>
#include <limits>

#include "ps/internal/logging.h"

namespace ps {

using Key = uint64_t;
inline constexpr Key kMaxKey = std::numeric_limits<Key>::max();

// Nodes: the scheduler, then servers 8, 10, 12 ... and workers 9, 11, 13 ... by rank. Groups: their sums,
// too.
inline constexpr int kScheduler = 1;
inline constexpr int kServerGroup = 2;
inline constexpr int kWorkerGroup = 4;

}  // namespace ps
