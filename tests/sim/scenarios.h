// Named runs: each a behaviour that a user counts on, with what it must come to besides satisfying the
// checkers. Used by the tests and by longhaul-sim --scenario.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/sim/cluster.h"
#include "tests/sim/plan.h"

namespace longhaul::sim {

struct Scenario {
  std::string name;
  RunPlan plan;
  // What is missing; empty when the run came out as it should.
  std::function<std::string(const RunResult&)> expect;
};

const std::vector<Scenario>& Scenarios();
// Null when there is none of this name.
const Scenario* FindScenario(const std::string& name);

}  // namespace longhaul::sim
