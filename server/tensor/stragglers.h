// For how long a round of one tensor waits for a worker: learned from the rounds before, and relative to what
// the others need, so that there is no time-out to guess.
//
//   usual_i = median + 3 MAD of the times that worker i's high class took, from the round's beginning on
//   usual   = median of usual_i over the workers
//   a round waits for worker i until  begin + min(max(factor usual, usual + 2 RTT_i, usual + kGrace), bound)
//
// and, but for the bound, at least until half of the members are done: a straggler is one relative to the
// others. A round that a quorum of k closes waits for the others, once the windows of k are in, for a grace
//
//   grace = max(usual_(k) - median_(1), kGrace)
//
// by which the workers of a quorum are usually apart themselves: (i) = the i-th smallest. Before k workers
// have a usual time it is as long as the quorum took. Knows no connections. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/instant.h"
#include "longhaul/units.h"

namespace longhaul::server {

// What a worker's recent windows took until their high class was done, and the soft deadline learned from it.
//
//   soft = median + 3 max(MAD, median / 16, 1 ms)
//
// of the last 32 times, from the eighth on (MAD: median absolute deviation). The median and not the mean,
// since the deadline must not move with the outliers that it is there to cut off. Not thread-safe.
class CloseTimes {
 public:
  static constexpr size_t kMemory = 32;  // windows: after half of them a lasting change is the median
  static constexpr size_t kEnough = 8;   // windows: three outliers do not become their median

  // REQUIRES: not negative.
  void Add(Duration taken);
  // Nullopt as long as there are fewer than kEnough.
  std::optional<Duration> Soft() const;
  // Of all that are remembered; the upper one of an even number. REQUIRES: count() > 0.
  Duration Median() const;
  size_t count() const { return count_; }

 private:
  std::array<Duration, kMemory> times_{};  // ring
  size_t count_ = 0;                       // at most kMemory
  size_t next_ = 0;
};

// factor x time, a year at most.
Duration Times(Duration time, double factor);

class Stragglers {
 public:
  // Below this the scheduling of the machines would decide which worker is a straggler.
  static constexpr Duration kGrace = std::chrono::milliseconds(50);

  // factor: 0 = only the bound counts; else >= 1. bound: zero = none. quorum: 0 = there is none.
  Stragglers(double factor, Duration bound, uint32_t ranks, uint32_t quorum = 0)
      : factor_(factor),
        bound_(bound),
        since_begin_(factor > 0 || quorum > 0 ? ranks : 0),
        soft_(since_begin_.size()) {}

  // The worker's high class was complete so long after the round's beginning.
  void OnHighDone(uint32_t rank, Duration since_begin);
  // What the others are measured by; nullopt before half of `ranks` have a history, and without a factor.
  const std::optional<Duration>& Usual() const;
  // When a round that began at `begin` stops waiting for a worker at this RTT. done: windows of the round
  // that are over, of so many members.
  Instant Deadline(Instant begin, Duration rtt, uint32_t done, uint32_t members) const;
  // How long a round whose quorum was in after `took` waits for the others. REQUIRES: quorum >= 1.
  Duration Grace(uint32_t quorum, Duration took) const;

 private:
  // What the members' times say of it; nullopt: too few have any.
  std::optional<Duration> LearnedGrace(uint32_t quorum) const;

  double factor_;
  Duration bound_;
  std::vector<CloseTimes> since_begin_;        // by rank
  std::vector<std::optional<Duration>> soft_;  // by rank: since_begin_[rank].Soft()
  mutable std::optional<Duration> usual_;
  mutable bool stale_ = false;  // usual_: of the times before
  mutable std::optional<Duration> grace_;
  mutable uint32_t grace_of_ = 0;  // grace_: of this quorum and the times of now; 0: of others
};

}  // namespace longhaul::server
