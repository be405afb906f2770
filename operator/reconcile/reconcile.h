// The life of a job, as a pure function: what is observed -> what is to be done.
//
//   Pending -> Planned -> Provisioning -> Starting -> Running -> Completing -> Succeeded
//                                            ^           |
//                                            +-- Restarting        (any, suspended) Suspended
//                                                                  (any, for good)  Failed
//
// Level-triggered: nothing is remembered between calls but the job's status and its objects, so that it does
// not matter how often it is called, which events were missed, or when the operator was killed. What counts
// (a retry, a disruption, a new attempt) goes into the status first, alone; only when the status is seen to
// have it, what it was counted from is deleted.
#pragma once

#include "base/instant.h"
#include "operator/reconcile/actions.h"
#include "operator/reconcile/observed.h"

namespace longhaul::kube {

// `now` is the time since the Unix epoch.
Decision Reconcile(const Settings& settings, const Observed& observed, Instant now);

// Before the n-th try anew: 1, 2, 4 .. 60 s. REQUIRES: n >= 1.
Duration Backoff(int64_t n);

}  // namespace longhaul::kube
