// Whether every node's part was counted once: judged by what messages held, by code that knows no policy.
#pragma once

#include <string>

#include "offload/ringsim/ring_sim.h"

namespace longhaul::offload::ringsim {

// What is wrong with a run; empty: nothing. Every chunk has a result, the result has one copy of every node's
// part, and every message held what it said.
std::string CheckExactlyOnce(const RingModel& model, const RingOutcome& outcome);

}  // namespace longhaul::offload::ringsim
