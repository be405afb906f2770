#include "operator/resource/node_template.h"

#include <algorithm>
#include <array>
#include <initializer_list>

namespace longhaul::kube {
namespace {

constexpr std::string_view kAskForProfile =
    "only a TrainingProfile may have it: leave it out, or ask an administrator for a profile that has it and "
    "name "
    "that in spec.profileRef";

// What a job's template may have. Everything else of a pod is refused: new fields of Kubernetes may give
// rights that are not known here.
constexpr std::array<std::string_view, 13> kPodFields = {"affinity",
                                                         "containers",
                                                         "dnsConfig",
                                                         "imagePullSecrets",
                                                         "nodeSelector",
                                                         "priorityClassName",
                                                         "runtimeClassName",
                                                         "schedulerName",
                                                         "securityContext",
                                                         "terminationGracePeriodSeconds",
                                                         "tolerations",
                                                         "volumes",
                                                         "topologySpreadConstraints"};
constexpr std::array<std::string_view, 9> kContainerFields = {
    "args",      "command",         "env",          "imagePullPolicy", "name",
    "resources", "securityContext", "volumeMounts", "workingDir"};
// The operator's own, also in a profile.
constexpr std::array<std::string_view, 7> kOperatorsFields = {
    "automountServiceAccountToken", "ephemeralContainers", "hostname", "restartPolicy",
    "shareProcessNamespace",        "subdomain",           "nodeName"};
constexpr std::array<std::string_view, 4> kVolumeKinds = {"configMap", "downwardAPI", "emptyDir",
                                                          "persistentVolumeClaim"};
constexpr std::array<std::string_view, 3> kPathsOfOurs = {"/run/longhaul", "/etc/longhaul", "/longhaul"};

template <size_t N>
bool Contains(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

class Checker {
 public:
  explicit Checker(TemplateOrigin origin) : of_job_(origin == TemplateOrigin::kJob) {}

  Status Check(const Json& pod_template, const std::string& path) {
    Fields all(pod_template, path, &status_);
    Metadata(all.Object("metadata"));
    Pod(all.Any("spec"), all.PathOf("spec"));
    all.NoOthers();
    return status_;
  }

 private:
  void Fail(const std::string& path, std::string_view message) {
    if (status_.ok()) status_ = {StatusCode::kInvalidArgument, path + ": " + std::string(message)};
  }

  void Metadata(Fields metadata) {
    for (const std::string_view map : {"labels", "annotations"}) {
      const Fields entries = metadata.Object(map);
      if (!entries.present()) continue;
      for (const auto& [key, value] : metadata.Any(map).items()) {
        const std::string where = entries.path() + "." + key.substr(0, 80);
        // With them a pod gets traffic of a Service that selects it, or loses its AppArmor profile.
        if (of_job_) Fail(where, kAskForProfile);
        if (!value.is_string()) Fail(where, "is no string: put it into quotes");
        if (key.starts_with(kReservedLabel)) Fail(where, "is the operator's: choose another name");
      }
    }
    metadata.NoOthers();
  }

  void Pod(const Json& pod, const std::string& path) {
    if (!Fields(pod, path, &status_).present()) return;
    for (const auto& [key, value] : pod.items()) {
      const std::string where = path + "." + key.substr(0, 80);
      if (Contains(kOperatorsFields, key)) Fail(where, "is set by the operator: leave it out");
      if (of_job_ && !Contains(kPodFields, key)) Fail(where, kAskForProfile);
    }
    SecurityContext(At(pod, {"securityContext"}), path + ".securityContext");
    Each(At(pod, {"volumes"}), path + ".volumes",
         [&](const Json& volume, const std::string& at) { Volume(volume, at); });
    const Json& containers = At(pod, {"containers"});
    if (containers.is_array() && containers.size() > 1) {
      Fail(path + ".containers", "has more than one: the pod's other container is the operator's ring");
    }
    Each(containers, path + ".containers",
         [&](const Json& one, const std::string& at) { Container(one, at); });
  }

  template <typename F>
  void Each(const Json& list, const std::string& path, F check) {
    if (list.is_null()) return;
    if (!list.is_array()) return Fail(path, "is no list");
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string at = path + "[" + std::to_string(i) + "]";
      if (!list[i].is_object()) return Fail(at, "is no object");
      check(list[i], at);
    }
  }

  void Volume(const Json& volume, const std::string& path) {
    if (TextAt(volume, {"name"}).empty()) Fail(path + ".name", "is missing");
    if (TextAt(volume, {"name"}).starts_with(kReservedVolume)) {
      Fail(path + ".name", "begins with longhaul-, as the operator's do: choose another name");
    }
    if (!of_job_) return;
    for (const auto& [key, value] : volume.items()) {
      if (key != "name" && !Contains(kVolumeKinds, key)) Fail(path + "." + key.substr(0, 80), kAskForProfile);
    }
  }

  void Container(const Json& container, const std::string& path) {
    const std::string name = TextAt(container, {"name"});
    if (!name.empty() && name != kTrainer) {
      Fail(path + ".name", "is not \"trainer\", the only container that a template describes");
    }
    for (const auto& [key, value] : container.items()) {
      const std::string where = path + "." + key.substr(0, 80);
      if (key == "image") Fail(where, "is not read: the image is spec.image");
      if (of_job_ && !Contains(kContainerFields, key)) Fail(where, kAskForProfile);
    }
    SecurityContext(At(container, {"securityContext"}), path + ".securityContext");
    for (const std::string key : {"command", "args"}) {
      const Json& words = At(container, {key});
      const bool good = words.is_null() ||
                        (words.is_array() && std::all_of(words.begin(), words.end(),
                                                         [](const Json& word) { return word.is_string(); }));
      if (!good) Fail(path + "." + key, "is no list of strings");
    }
    Each(At(container, {"env"}), path + ".env", [&](const Json& variable, const std::string& at) {
      if (TextAt(variable, {"name"}).starts_with(kReservedVariable)) {
        Fail(at + ".name", "begins with LONGHAUL_, as the operator's do: choose another name");
      }
      if (of_job_ && !At(variable, {"valueFrom", "secretKeyRef"}).is_null()) {
        Fail(at + ".valueFrom.secretKeyRef", kAskForProfile);
      }
    });
    Each(At(container, {"volumeMounts"}), path + ".volumeMounts",
         [&](const Json& mount, const std::string& at) {
           const std::string to = TextAt(mount, {"mountPath"});
           for (const std::string_view ours : kPathsOfOurs) {
             if (to == ours || to.starts_with(std::string(ours) + "/")) {
               Fail(at + ".mountPath", "is the operator's: choose another path than " + std::string(ours));
             }
           }
         });
    const Json& resources = At(container, {"resources"});
    if (!resources.is_null() && !resources.is_object()) Fail(path + ".resources", "is no object");
  }

  // Of a pod or a container. A profile's are the administrator's business.
  void SecurityContext(const Json& context, const std::string& path) {
    if (!Fields(context, path, &status_).present() || !of_job_) return;
    for (const auto& [key, value] : context.items()) {
      const std::string where = path + "." + key.substr(0, 80);
      if (key == "runAsUser" || key == "runAsGroup" || key == "fsGroup") {
        if (NumberAt(context, {key}, 0) < 1) Fail(where, "is root, or no number: give a user other than 0");
      } else if (key == "runAsNonRoot" || key == "readOnlyRootFilesystem") {
        if (value != true) Fail(where, kAskForProfile);
      } else if (key == "allowPrivilegeEscalation" || key == "privileged") {
        if (value != false) Fail(where, kAskForProfile);
      } else if (key == "capabilities") {
        if (!At(value, {"add"}).is_null()) Fail(where + ".add", kAskForProfile);
        const Json& drop = At(value, {"drop"});
        if (!drop.is_null() && drop != Json::array({"ALL"})) Fail(where + ".drop", kAskForProfile);
      } else if (key == "seccompProfile") {
        if (TextAt(value, {"type"}) != "RuntimeDefault") Fail(where + ".type", kAskForProfile);
      } else {
        Fail(where, kAskForProfile);
      }
    }
  }

  const bool of_job_;
  Status status_;
};

}  // namespace

Status CheckTemplate(const Json& pod_template, TemplateOrigin origin, const std::string& path) {
  if (DeeperThan(pod_template, kMaxDepth)) {
    return {StatusCode::kInvalidArgument,
            path + ": is nested deeper than " + std::to_string(kMaxDepth) + " levels"};
  }
  return Checker(origin).Check(pod_template, path);
}

}  // namespace longhaul::kube
