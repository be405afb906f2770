// The kinds of objects that the operator reads and writes, and how its actions are requests.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "operator/api/core/api_request.h"
#include "operator/reconcile/reconcile.h"

namespace longhaul::kube {

struct Kind {
  std::string_view version, name;  // "apps/v1", "StatefulSet"
  api::ResourceType type;
};

// Null: none that the operator handles.
const Kind* FindKind(std::string_view name);

// Lists of an API server leave apiVersion and kind of their objects out: they are set here. What the
// operator does not read is taken away: most of a pod, and of a script all but its
// mark (operator/resource/stamp.h).
void Slim(const Kind& kind, Json* object);

// What is sent after a lease was renewed last is over before another holder may begin: the lease's 15 s less
// the 10 s up to which its holder acts.
inline constexpr Duration kWriteLimit = std::chrono::seconds(5);

// nullopt: of a kind that is not handled, or an event (EventDesk).
std::optional<api::ApiRequest> RequestOf(const Action& action);

// metadata.labels has the uid of this job.
bool IsOfJob(const Json& object, std::string_view job_uid);

}  // namespace longhaul::kube
