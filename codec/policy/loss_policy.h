// What becomes of gradient elements that the network loses: the loss policy of a job.
//
// One policy owns both halves of the answer, what the worker remembers (codec/policy/sender_memory.h) and
// what the server puts in the place of what is missing (codec/policy/filler.h). Both are made from the same
// JobSpec, so a loss is compensated once: a worker that repays is never combined with a server that
// compensates as well.
//
//   policy    the worker sends       and remembers             a missing contribution counts as
//   zero      g                      nothing                   0
//   count     g                      nothing                   the mean of those that arrived
//   stale     g                      nothing                   the chunk's mean of the last round, x 0.9
//   ipw       g                      nothing                   0; what arrives of the low class counts 1/q,
//                                                              q = the share of it that arrived so far
//   residual  g + residual           what was lost             0 now; it comes with the next gradient
//   shift     g - c (its own shift)  c += alpha x delivered    the worker's own expectation c
//
// g = gradient. A certain loss is tolerated: below the bubble-filling threshold, zero, count, stale and ipw
// count what is missing as 0 in the mean over all. residual and shift account for every loss, whatever the
// threshold; there it only names the loss in reports.
//
// Sources: residual is error feedback with the network as the compressor (Seide et al. 2014; EF21, Richtarik
// et al. 2021). shift is a shifted compressor of the same kind (DIANA, Mishchenko et al. 2019). ipw is
// inverse probability weighting (Horvitz and Thompson 1952).
#pragma once

#include "longhaul/job.h"

namespace longhaul::codec {

// The worker remembers what was not delivered, so what it leaves out on purpose is not lost either. Policies
// that forget must not be combined with sending a part only.
constexpr bool Remembers(LossPolicy policy) {
  return policy == LossPolicy::kResidual || policy == LossPolicy::kShift;
}

// What was not taken is owed, and comes again on top of the next gradient. A server that must
// not see something again has to take it, whatever it does with it then.
constexpr bool Repays(LossPolicy policy) { return policy == LossPolicy::kResidual; }

}  // namespace longhaul::codec
