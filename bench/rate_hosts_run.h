// One run of a cell of the host grid, in virtual time.
#pragma once

#include <cstdint>
#include <ostream>

#include "bench/rate_hosts_cells.h"
#include "transport/core/rate/rate_controller.h"

namespace longhaul::bench {

// Of the flows under test together; NaN where a cell does not measure it.
struct HostSample {
  double utilisation = 0;  // what arrived, of (1 - random loss) * what they can have
  double own_loss = 0;     // dropped by the queue or the policer, of what they sent
  double queue_ms = 0;     // mean wait in the queue
  double jain = 0;
  double share = 0;    // of all that arrived; NaN without cross traffic
  double runaway = 0;  // largest ratio of pacing rate to the best delivery rate of five rounds; NaN in rounds
  double fitted = 0;   // share of the time in which the target loss was a fitted one
  double packets = 0;  // sent by all flows, warming up included: what the run costs
};

struct HostRun {
  RateControl control = RateControl::kLonghaul;
  uint64_t seed = 1;
  std::ostream* trace = nullptr;  // gets a line a round trip of the first flow
};

HostSample RunHostCell(const HostCell& cell, const HostRun& run);

}  // namespace longhaul::bench
