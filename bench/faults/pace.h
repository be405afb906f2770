// How much of its pace a job keeps under faults, how soon one of many members begins, and what is left of a
// training whose server is killed again and again.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "longhaul/status.h"

namespace longhaul::bench::faults {

struct PaceOptions {
  double minutes = 10;  // with faults; as many without
  double every = 30;    // s, of which each has one fault at its beginning, or none
  uint32_t workers = 12;
  uint32_t servers = 3;
  uint32_t sites = 0;       // that the workers stand in, each behind its offload engines; 0: none
  bool of_servers = false;  // faults of servers in place of those of members, or of sites
  uint64_t seed = 1;
  bool verbose = false;
};
// Spans with a fault and spans without one take turns in one job, whose rounds close with all members but
// one: rounds a second of both. Errors of all three: the job cannot be started, or does not go on.
Result<nlohmann::json> RunPace(const PaceOptions& options);

// From the last member's Connect to the end of the first round.
Result<nlohmann::json> RunStart(uint32_t workers, int repetitions, uint64_t seed);

struct KillsOptions {
  uint32_t workers = 2;
  int kills = 50;
  int rounds = 1500;
  uint64_t seed = 1;
  bool verbose = false;
};
// The demo's training, undisturbed and with a server that is killed and started again: accuracy, and the
// rounds that its last checkpoint holds against those that were asked for.
Result<nlohmann::json> RunKills(const KillsOptions& options);

// Rounds of 4 MB a member, in jobs with and without checkpoints in turn: how long they last.
Result<nlohmann::json> RunCheckpoints(int blocks, int rounds, uint64_t seed);

}  // namespace longhaul::bench::faults
