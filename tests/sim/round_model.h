// A plain model of one tensor in training. It reads from each version whose contributions are in it (the
// gradients are made for that, gradient_code.h), checks that they explain every element, and keeps the books
// of what each worker still has to repay.
//
// Its input is what the applications saw, never what the servers did. Where a fault leaves it open what
// happened (a process died with a push on its way) it accepts each possibility, once.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/sim/ledger.h"
#include "tests/sim/plan.h"

namespace longhaul::sim {

struct ModelOutcome {
  uint64_t rounds_checked = 0;
  uint64_t chunks_lost = 0;
  uint64_t chunks_repaid = 0;
  std::vector<uint64_t> contributions;  // by rank
  // All versions from the first to the last that a worker saw could be checked.
  bool complete = false;
  bool gap = false;  // the checking ended at a version that no worker saw, although a worker saw a later one
  bool ambiguous = false;  // contributions cannot all be told from the results
  std::vector<std::string> violations;
};

ModelOutcome CheckTensor(const JobPlan& job, uint32_t job_index, uint32_t tensor, const JobLedger& ledger);

}  // namespace longhaul::sim
