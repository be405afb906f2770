// What Reconcile wants to be done, in this order. Every action may fail, be lost, or be done twice: the next
// call sees what came of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longhaul/units.h"
#include "operator/resource/fields.h"

namespace longhaul::kube {

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
};

}  // namespace longhaul::kube
