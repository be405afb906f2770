// One fault of a running job, what has to come of it, and what came of it.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/faults/job.h"

namespace longhaul::bench::faults {

enum class Outcome : uint8_t {
  kGoesOn,  // rounds go on, at the latest one idle time-out + 2 s after the fault, or after its end
  kEnds,    // every worker and the server's job end by then
};

struct Scenario {
  std::string name;
  // What is done, for the table.
  std::string fault;
  JobOptions options = {};
  std::function<void(Job&)> begin;
  // Empty: the fault stays.
  std::function<void(Job&)> end = {};
  Duration length{0};
  Outcome outcome = Outcome::kGoesOn;
  // Idle time-outs that rounds may take to go on; more where a rule of the job says so.
  int idle_timeouts = 1;
  // A regular expression (ECMAScript) for the line that names it, in any program's output; empty: nothing has
  // to be named, for nothing is wrong in the end.
  std::string named = {};
};

struct Report {
  std::string name, fault, outcome;
  std::string line;             // that names it; shortened
  double seconds_to_name = -1;  // since the fault began; below 0: not named
  // Of the longest pause between two rounds since the fault began: its end, since the fault's end (0: before
  // it), or since its beginning when it has none.
  double seconds_to_recover = -1;
  double pause = 0;
  double rounds_before = 0;  // a second
  double rounds_lost = 0;    // what the pause has cost at the rate of before
  std::string exits;
  std::string miss;  // why it is not as it has to be; empty: it is
};

const std::vector<Scenario>& Scenarios();
// Prints what happens on standard error when `verbose`. Errors: the job cannot be started.
Result<Report> Run(const Scenario& scenario, uint64_t seed, bool verbose);

}  // namespace longhaul::bench::faults
