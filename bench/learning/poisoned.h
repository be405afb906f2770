// Members that lie among others: what each defence leaves of a model's accuracy.
#pragma once

#include <string>
#include <vector>

#include "bench/learning/scenario.h"

namespace longhaul::bench {

// Two of eight lie, in every attack and none, against every defence; batches alike for all workers (skew 0)
// and with a label skew of 90 %.
struct PoisonedRun {
  std::string defence;
  std::string attack;
  Scenario scenario;
};
std::vector<PoisonedRun> PoisonedRuns();

}  // namespace longhaul::bench
