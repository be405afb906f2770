// The judges of a run. They know the plan and what the applications saw, and share no code with the servers
// and workers under test: contributions and results are recomputed by plain models (round_model.h,
// policy_models.h).
//
//   exactly once     every result is explained by contributions of which none is in it twice
//   conservation     policy residual: what was applied plus what is still held back is what was produced
//   shift            policy shift: every result is the sum of the shifts plus what was said beyond them
//   staleness        SSP: no push is acknowledged while its worker is further ahead than it may be
//   agreement        all workers read the same bits for the same version
//   ends             every operation ends exactly once, with a status that fits what has happened
//   in time          what must end because of a death ends within the idle time-out
// Progress, timers and bounds are watched while the run goes on (cluster.cc).
#pragma once

#include <string>
#include <vector>

#include "tests/sim/cluster.h"
#include "tests/sim/ledger.h"
#include "tests/sim/plan.h"

namespace longhaul::sim {

// Appends what is wrong to result->violations and counts what was checked.
void CheckJob(const RunPlan& plan, uint32_t job, const JobLedger& ledger, RunResult* result);

// The single judges, for tests of the judges. weather_deaths counts jobs that only bad luck has ended.
void CheckEnds(const JobLedger& ledger, std::vector<std::string>* violations);
void CheckOutcomes(const RunPlan& plan, uint32_t job, const JobLedger& ledger,
                   std::vector<std::string>* violations, uint64_t* weather_deaths);

}  // namespace longhaul::sim
