// For how long a round of one tensor waits for a worker: learned from the rounds before, and relative to what
// the others need, so that there is no time-out to guess.
//
//   usual_i = median + 3 MAD of the times that worker i's high class took, from the round's beginning on
//   usual   = median of usual_i over the workers
//   a round waits for worker i until  begin + min(max(factor usual, usual + 2 RTT_i, usual + kGrace), bound)
//
// and, but for the bound, at least until half of the members are done: a straggler is one relative to the
// others. Knows no connections. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/instant.h"
#include "longhaul/units.h"
#include "server/close_times.h"

namespace longhaul::server {

class Stragglers {
 public:
  // Below this the scheduling of the machines would decide who is a straggler.
  static constexpr Duration kGrace = std::chrono::milliseconds(50);

  // factor: 0 = only the bound counts; else >= 1. bound: zero = none.
  Stragglers(double factor, Duration bound, uint32_t ranks)
      : factor_(factor), bound_(bound), since_begin_(factor > 0 ? ranks : 0) {}

  // The worker's high class was complete so long after the round's beginning.
  void OnHighDone(uint32_t rank, Duration since_begin);
  // What the others are measured by; nullopt before half of `ranks` have a history, and without a factor.
  std::optional<Duration> Usual() const;
  // When a round that began at `begin` stops waiting for a worker at this RTT. done: windows of the round
  // that are over, of so many members.
  Instant Deadline(Instant begin, Duration rtt, uint32_t done, uint32_t members) const;

 private:
  double factor_;
  Duration bound_;
  std::vector<CloseTimes> since_begin_;  // by rank
};

}  // namespace longhaul::server
