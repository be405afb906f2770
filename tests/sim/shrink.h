// Makes a failing plan smaller: leaves out what it fails without (delta debugging, Zeller and Hildebrandt
// 2002, one thing at a time). A smaller plan is the drawn one and a list of edits, which --edit takes:
//
//   longhaul-sim --seed 67 --edit 'fault=2 fault=0 workers=0.2 rounds=0.3 no-loss'
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/sim/cluster.h"
#include "tests/sim/plan.h"

namespace longhaul::sim {

// One word of the list. Numbers are those of the drawn plan: edits do not renumber.
//   fault=F  job=J  tensor=J.T    is left out
//   workers=J.N  rounds=J.N       only so many
//   chunks=J.T.N                  of a tensor
//   no-loss no-jitter no-copies no-reorder no-damage no-keys no-gate no-barriers no-think no-delays no-fec
//   no-deterministic no-weights no-stragglers
using Edits = std::vector<std::string>;

// False, with what is wrong, for a word that is none; edits that change nothing are fine.
bool Apply(const Edits& edits, RunPlan* plan, std::string* error);
// "fault=2 no-loss".
std::string Join(const Edits& edits);
Edits Split(const std::string& text);

struct Shrunk {
  Edits edits;
  RunPlan plan;
  std::vector<std::string> violations;  // of the smallest plan
  uint32_t runs = 0;
};

// REQUIRES: the plan fails. `run` is RunCluster, or what a test puts in its place. A smaller plan must fail
// with the same words, numbers aside.
Shrunk Shrink(const RunPlan& plan, const std::function<std::vector<std::string>(const RunPlan&)>& run,
              uint32_t most_runs = 500);

}  // namespace longhaul::sim
