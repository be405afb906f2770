// Puts the rounds of single tensors together to rounds of the job, and remembers how long these took.
//
// A round of the job is over when every tensor of the job has finished one, or when a tensor finishes its
// next one (a tensor that is not pushed in every round holds nothing up). Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "server/report/server_stats.h"
#include "server/round/round_engine.h"

namespace longhaul::server {

class RoundLog {
 public:
  // Durations kept for the percentiles; the oldest go first.
  static constexpr size_t kMaxHistory = 4096;

  explicit RoundLog(Instant started) : previous_end_(started) {}

  // A tensor's round is finished now; `tensors` are declared. Returns the rounds of the job that are over by
  // that.
  std::vector<JobRound> Add(const TensorRound& round, size_t tensors, Instant now);
  // The job is over: the round in progress, if any tensor has finished it.
  std::optional<JobRound> Flush();

  uint64_t rounds() const { return rounds_; }
  uint64_t low_chunks() const { return low_chunks_; }
  uint64_t low_lost() const { return low_lost_; }
  // Share `p` (0..1) of the remembered rounds took at most this long; zero before the first.
  Duration Percentile(double p) const;

 private:
  struct Open {
    std::set<const Tensor*> tensors;
    JobRound sum;
    Instant begun = Instant::Infinite();
    Instant end;
  };
  JobRound Finish();

  Open open_;
  std::vector<Duration> history_;  // a ring once it is full
  uint64_t rounds_ = 0;
  uint64_t low_chunks_ = 0;
  uint64_t low_lost_ = 0;
  Instant previous_end_;
};

}  // namespace longhaul::server
