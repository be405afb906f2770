// What each further member of a job costs its server: bytes, packets, CPU time, memory and time of a round.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "longhaul/status.h"

namespace longhaul::bench::faults {

struct ScaleOptions {
  std::vector<uint32_t> workers = {4, 16, 64};
  uint64_t bytes = 200'000;  // of the one tensor
  int rounds = 10;           // of a block, and kWarm before them
  int blocks = 3;            // of each number of workers, in turn
  // Of each member's link, each way; simulated ones share a link of that times their number.
  std::string rate = "200mbit";
  std::string path = "delay 10ms loss 1%";
  bool simulated = false;  // both cores in one thread and in virtual time, in place of processes
  uint64_t seed = 1;
};
// Errors: the job cannot be started, or does not go on.
Result<nlohmann::json> RunScale(const ScaleOptions& options);

}  // namespace longhaul::bench::faults
