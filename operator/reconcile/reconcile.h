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

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/instant.h"
#include "operator/reconcile/observed.h"

namespace longhaul::kube {

// What is to be done, in this order. Every action may fail, be lost, or be done twice: the next call sees
// what came of it.
enum class Verb : uint8_t {
  kCreate,       // AlreadyExists is success: the next observation has what is there
  kDelete,       // with the uid as precondition; NotFound is success
  kPatchStatus,  // of the job: its whole status, with metadata.resourceVersion as precondition
  kPatchJob,     // server-side apply of the job's metadata.finalizers, with resourceVersion as precondition
  kEvent,        // {"type", "reason", "message"}: an Event about the job
};

struct Action {
  Verb verb = Verb::kCreate;
  std::string cluster;  // as in SiteObject
  // The object; of kDelete apiVersion, kind, metadata.name, namespace and uid.
  Json object;
  std::optional<int64_t> grace_seconds;  // of kDelete: 0 takes a pod away whose machine is silent
};

struct Decision {
  std::vector<Action> actions;
  // Called again then at the latest, also when nothing is seen to change.
  std::optional<Duration> requeue_after;
  // A plan is to be written, and its script was not seen as a whole: to be decided again with it, and none of
  // the actions done.
  bool needs_script = false;
};

// `now` is the time since the Unix epoch.
Decision Reconcile(const Settings& settings, const Observed& observed, Instant now);

// Before the n-th try anew: 1, 2, 4 .. 60 s. REQUIRES: n >= 1.
Duration Backoff(int64_t n);

}  // namespace longhaul::kube
