#include "operator/controller/kinds.h"

#include <algorithm>
#include <array>

#include "operator/resource/stamp.h"

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

void KeepMark(Json* text) {
  if (text->is_string()) *text = ScriptMark(text->get<std::string>());
}

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
    if (At(*object, {"spec", "script", "inline"}).is_string())
      KeepMark(&(*object)["spec"]["script"]["inline"]);
    return;
  }
  if (At(*object, {"data", "script"}).is_string()) KeepMark(&(*object)["data"]["script"]);
  if (const auto metadata = object->find("metadata"); metadata != object->end() && metadata->is_object()) {
    metadata->erase("annotations");
    metadata->erase("ownerReferences");
  }
  if (kind.name != "Service") object->erase("spec");
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
  request.ignores_answer = true;  // it may be half a megabyte, and 64 jobs at once
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
