// Plain models of the loss policies whose results the marker alone does not explain (round_model.h), judged
// by what the applications saw.
//
//   shift   keeps every worker's shift and their sum C itself. Every version must be C plus what some of the workers
//           that pushed had to say beyond their shifts; so C == sum of w_i c_i all the time. A new epoch, from zero,
//           is accepted only after a worker has left, joined or come back.
//   ipw     what a contribution counts for is read from its marker: nothing, or one to four times; every element must
//           then fit. That a low chunk counts twice by mistake is not seen.
//   sums    of priority topk, where only parts of a chunk arrive: over all rounds, what was applied plus what the
//           workers still owe is what they produced, element by element. Only while no worker dies.
#pragma once

#include <cstdint>

#include "tests/sim/ledger.h"
#include "tests/sim/plan.h"
#include "tests/sim/round_model.h"

namespace longhaul::sim {

ModelOutcome CheckShift(const JobPlan& job, uint32_t tensor, const JobLedger& ledger);
ModelOutcome CheckIpw(const JobPlan& job, uint32_t tensor, const JobLedger& ledger);
ModelOutcome CheckSums(const JobPlan& job, uint32_t job_index, uint32_t tensor, const JobLedger& ledger);

}  // namespace longhaul::sim
