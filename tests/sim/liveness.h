// How quick the rounds behind a job's gate have to be, when all faults are over and its network is healed.
#pragma once

#include <cstdint>
#include <span>

#include "longhaul/units.h"
#include "tests/sim/plan.h"
#include "wan/link_options.h"

namespace longhaul::sim {

// What is over: no loss, no copies, no reordering, no damage, no jitter. Rate, delay and queue stay.
wan::LinkOptions Healed(wan::LinkOptions link);

// The time that a round needs on links without loss: what it sends, at the rate of the slowest worker's
// links, and its round trips.
Duration LosslessRound(const RunPlan& plan, uint32_t job, uint32_t chunk_elements,
                       std::span<const wan::LinkOptions> up, std::span<const wan::LinkOptions> down);

// What the rounds behind the gate may take, of which all together need `lossless`. A connection that the
// faults have slowed down has a constant to find the rate again.
Duration LivenessBound(const RunPlan& plan, uint32_t job, Duration lossless);

// What a whole run may take in its weather, from the start to the end of its last process.
Duration TimeLimit(const RunPlan& plan);

}  // namespace longhaul::sim
