#include "operator/controller/kinds.h"

#include <algorithm>
#include <array>

namespace longhaul::kube {
namespace {

const std::array<Kind, 10>& Kinds() {
  static const std::array<Kind, 10> kinds = {{
      {kApiVersion, "TrainingJob", {"longhaul.dev", "v1alpha1", "trainingjobs", true}},
      {kApiVersion, "TrainingProfile", {"longhaul.dev", "v1alpha1", "trainingprofiles", true}},
      {"v1", "Pod", {"", "v1", "pods", true}},
      {"apps/v1", "StatefulSet", {"apps", "v1", "statefulsets", true}},
      {"v1", "Service", {"", "v1", "services", true}},
      {"v1", "ConfigMap", {"", "v1", "configmaps", true}},
      {"v1", "PersistentVolumeClaim", {"", "v1", "persistentvolumeclaims", true}},
      {"v1", "Secret", {"", "v1", "secrets", true}},
      {"v1", "Event", {"", "v1", "events", true}},
      {"v1", "Node", {"", "v1", "nodes", false}},
  }};
  return kinds;
}

// Of the status and of the finalizers. Two managers, since an apply gives up what its manager had and does
// not name, and API servers before 1.22 do not tell the parts of an object apart.
constexpr const char* kStatusManager = "longhaul-operator-status";
constexpr const char* kFinalizerManager = "longhaul-operator";

constexpr const char* kEndedScript = "ended";  // not empty, which would be no script

std::string MarkOf(const std::string& script) { return "longhaul.dev/script " + Fingerprint(script); }

}  // namespace

const Kind* FindKind(std::string_view name) {
  const auto& kinds = Kinds();
  const auto found = std::ranges::find_if(kinds, [&](const Kind& kind) { return kind.name == name; });
  return found == kinds.end() ? nullptr : &*found;
}

void Slim(const Kind& kind, Json* object) {
  if (!object->is_object()) return;
  (*object)["apiVersion"] = kind.version;
  (*object)["kind"] = kind.name;
  if (kind.version == kApiVersion) {
    // The whole object once more.
    if (At(*object, {"metadata", "annotations"}).is_object())
      (*object)["metadata"]["annotations"].erase("kubectl.kubernetes.io/last-applied-configuration");
    const auto phase = FromName<Phase>(TextAt(*object, {"status", "phase"}));
    if (phase && IsTerminal(*phase) && At(*object, {"spec", "script", "inline"}).is_string())
      (*object)["spec"]["script"]["inline"] = kEndedScript;
    return;
  }
  if (TextAt(*object, {"metadata", "annotations", kScriptAnnotation}) == "inline" &&
      At(*object, {"data", "script"}).is_string())
    (*object)["data"]["script"] = MarkOf(TextAt(*object, {"data", "script"}));
  if (const auto metadata = object->find("metadata"); metadata != object->end() && metadata->is_object()) {
    metadata->erase("annotations");
    metadata->erase("ownerReferences");
  }
  if (kind.name != "Service") object->erase("spec");
}

void RestoreScript(const TrainingJob& job, std::vector<SiteObject>* objects) {
  if (!job.spec.script.text) return;
  const std::string mark = MarkOf(*job.spec.script.text);
  for (SiteObject& one : *objects) {
    if (TextAt(one.object, {"data", "script"}) == mark) one.object["data"]["script"] = *job.spec.script.text;
  }
}

bool IsOfJob(const Json& object, std::string_view job_uid) {
  return TextAt(object, {"metadata", "labels", kUidLabel}) == job_uid;
}

std::optional<api::ApiRequest> RequestOf(const Action& action) {
  const Json& metadata = At(action.object, {"metadata"});
  const Kind* kind = FindKind(TextAt(action.object, {"kind"}));
  if (kind == nullptr || action.verb == Verb::kEvent) return std::nullopt;
  api::ApiRequest request;
  request.type = kind->type;
  request.name_space = TextAt(metadata, {"namespace"});
  request.name = TextAt(metadata, {"name"});
  request.time_limit = kWriteLimit;
  switch (action.verb) {
    case Verb::kEvent:
      break;
    case Verb::kCreate:
      request.verb = api::Verb::kCreate;
      request.name.clear();
      request.body = action.object;
      break;
    case Verb::kDelete:
      request.verb = api::Verb::kDelete;
      request.uid = TextAt(metadata, {"uid"});
      request.grace_seconds = action.grace_seconds;
      break;
    case Verb::kPatchStatus:
    case Verb::kPatchJob:
      request.verb = api::Verb::kApply;
      request.subresource = action.verb == Verb::kPatchStatus ? "status" : "";
      request.field_manager = action.verb == Verb::kPatchStatus ? kStatusManager : kFinalizerManager;
      request.force = true;
      request.body = action.object;
      break;
  }
  return request;
}

}  // namespace longhaul::kube
