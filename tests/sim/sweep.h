// Runs of many seeds, and what they saw together (longhaul-sim).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/sim/cluster.h"

namespace longhaul::sim {

struct SweepOptions {
  uint64_t first = 1;
  uint64_t seeds = 100;
  // Ends before a run that would begin later; zero: no bound. Of the clock on the wall.
  std::function<bool()> is_over;
  // Told of every failing seed at once, and of the progress after every 50.
  std::function<void(const std::string&)> say;
  size_t most_failures = 3;  // then the sweep ends
};

struct SweepResult {
  uint64_t seeds = 0;
  std::vector<uint64_t> failed;
  uint64_t encrypted = 0;
  uint64_t rounds = 0;
  uint64_t lost = 0;
  uint64_t repaid = 0;
  uint64_t datagrams = 0;
  uint64_t left_out = 0;
  uint64_t replicas = 0;
  uint64_t behind = 0;
  uint64_t late = 0;
  uint64_t unseen = 0;
  uint64_t weather_deaths = 0;
  uint64_t quick = 0;
  std::array<uint64_t, 6>
      recoveries{};  // runs whose slowest worker was less than 0, 1, 2, 4, 8 s late, or more
  double slowest_recovery = 0;
  uint64_t slowest_seed = 0;
  double longest = 0;  // virtual seconds
  double share_of_limit = 0;
  uint64_t longest_seed = 0;

  std::string ToString() const;
};

// One run; one seed in sixteen twice: the same seed must give the same events.
RunResult RunSeed(uint64_t seed);
SweepResult Sweep(const SweepOptions& options);

}  // namespace longhaul::sim
