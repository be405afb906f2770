// For how long a round of one tensor waits for a worker that is alive and does nothing. Unlike the deadlines
// of server/tensor/stragglers.h it is there without being asked for, and cuts no worker off that pushes as
// the job's workers do.
//
// A worker's turn is the time from the end of the round before until its high class is done: what it
// computes, and what it sends. usual_i is its mean plus four mean deviations (as a retransmission time-out of
// RFC 6298), usual the lower median of these over the workers: no minority moves it. own_i is the longest
// turn of worker i of late, which halves in 90 rounds: a worker that is slow now and then has that time. A
// round that began at `begin`, whose turn is `turn`, waits for worker i until the latest of
//
//   begin + 12 idle time-outs
//   turn  + patience usual
//   turn  + min(patience own_i, usual + 60 idle time-outs)     no worker earns more by being late
//
// and, before half of the workers have had 8 turns, until
//
//   begin + max(60 idle time-outs, patience (begin - turn)) + the model at 125 kbit/s
//
// With the idle time-out of 10 s: 2 and 10 minutes. Knows no connections. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/instant.h"
#include "longhaul/units.h"

namespace longhaul::server {

class Patience {
 public:
  // In idle time-outs. An evaluation or a checkpoint of one worker takes a minute or two; what only the first
  // rounds do (loading, compiling) takes several.
  static constexpr int kLeast = 12;
  static constexpr int kStart = 60;
  static constexpr uint32_t kEnough = 8;  // turns of a worker
  // Of the first rounds: what any path that is of use carries.
  static constexpr Bandwidth kSlowest = Bandwidth::BitsPerSecond(125'000);

  // factor: JobSpec::round_patience; 0: every round waits for ever.
  Patience(double factor, Duration idle_timeout, uint32_t ranks)
      : factor_(factor), idle_(idle_timeout), turns_(factor > 0 ? ranks : 0) {}

  // The worker's turn took so long. Of one that was left out: until its window came.
  void OnTurn(uint32_t rank, Duration taken);
  // Of the workers; none before half of them have had kEnough turns.
  const std::optional<Duration>& Usual() const;
  // model_bytes: of all tensors, as float32.
  Instant Deadline(uint32_t rank, Instant turn, Instant begin, uint64_t model_bytes) const;

 private:
  struct Turns {
    Duration mean{0};
    Duration deviation{0};
    Duration longest{0};
    uint32_t count = 0;
  };
  Duration Scaled(Duration time) const;

  double factor_;
  Duration idle_;
  std::vector<Turns> turns_;  // by rank
  mutable std::optional<Duration> usual_;
  mutable bool stale_ = false;  // usual_: of the turns before
};

}  // namespace longhaul::server
