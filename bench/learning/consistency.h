// Synchronous rounds, SSP and ASP: what they leave of a model's accuracy.
#pragma once

#include <vector>

#include "bench/learning/scenario.h"

namespace longhaul::bench {

// With each optimizer: without loss, alike workers and one that takes ten times as long; and each loss policy
// that may be combined with staleness at a loss of 10 %.
std::vector<Scenario> ConsistencyRuns();

}  // namespace longhaul::bench
