// Rings with many slow nodes at once, drawn from a seed.
#pragma once

#include <cstdint>
#include <string>

#include "offload/ringsim/ring_sim.h"

namespace longhaul::offload::ringsim {

struct RandomTally {
  uint64_t runs = 0;
  uint64_t stuck = 0;
  uint64_t wrong = 0;   // of those that ended: what the checker refuses
  std::string first;    // what is wrong with the first stuck or wrong one, and its seed
  double time = 0;      // sum over the ended runs: of the policy
  double time_off = 0;  // ... of policy off under the same load

  // Of all ended runs together.
  double saving() const { return time_off == 0 ? 0 : 1 - time / time_off; }
};

// 3 to 16 nodes; up to 30 % of the reduces slow by up to 100 us, in a quarter of the runs one node always, up
// to a fifth of the parts late; transfers that take up to 5 us longer, up to 10 % of the messages twice.
// Deadlines are learned, in one of eight runs not yet.
void RunAnything(uint64_t seed, RingPolicy policy, RandomTally* tally);

// `share` of the reduces of all chunks are slow, by up to 20 T; the network is quiet. `alpha`: 0 for learned
// deadlines.
void RunSlowReduces(uint64_t seed, uint32_t nodes, double share, RingPolicy policy, double alpha,
                    RandomTally* tally);

}  // namespace longhaul::offload::ringsim
