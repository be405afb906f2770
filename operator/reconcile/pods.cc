#include "operator/reconcile/pods.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "operator/reconcile/observed.h"
#include "operator/resource/timestamps.h"

namespace longhaul::kube {
namespace {

// status.reason of a failed pod that did not fail by itself (kubelet, taint manager, scheduler).
constexpr std::array<std::string_view, 9> kDisruptions = {"Evicted",
                                                          "Preempting",
                                                          "NodeLost",
                                                          "NodeShutdown",
                                                          "Terminated",
                                                          "Shutdown",
                                                          "NodeAffinity",
                                                          "UnexpectedAdmissionError",
                                                          "TopologyAffinityError"};
constexpr size_t kMostTrouble = 256;  // of a message of others, which may be long

const Json& ConditionOf(const Json& pod, std::string_view type) {
  static const Json kNone;
  const Json& conditions = At(pod, {"status", "conditions"});
  if (!conditions.is_array()) return kNone;
  for (const Json& condition : conditions) {
    if (TextAt(condition, {"type"}) == type) return condition;
  }
  return kNone;
}

bool ConditionIs(const Json& pod, std::string_view type, std::string_view value) {
  return TextAt(ConditionOf(pod, type), {"status"}) == value;
}

// That of the ranks before that of the engine, which ends with 1 when a rank has died.
std::optional<int64_t> ExitCodeOf(const Json& pod) {
  std::optional<int64_t> found;
  for (const char* list : {"initContainerStatuses", "containerStatuses"}) {
    const Json& statuses = At(pod, {"status", list});
    if (!statuses.is_array()) continue;
    for (const Json& container : statuses) {
      const int64_t code = NumberAt(container, {"state", "terminated", "exitCode"}, 0);
      if (code == 0) continue;
      if (!found || TextAt(container, {"name"}) == "trainer") found = code;
    }
  }
  return found;
}

bool RefusesKey(const Json& pod) {
  const Json& statuses = At(pod, {"status", "initContainerStatuses"});
  if (!statuses.is_array()) return false;
  return std::ranges::any_of(statuses, [](const Json& container) {
    // Between two tries the last one counts.
    const bool ended = At(container, {"state", "terminated"}).is_object();
    return TextAt(container, {"name"}) == "key" &&
           NumberAt(container, {ended ? "state" : "lastState", "terminated", "exitCode"}, 0) ==
               kKeyIsAnothers;
  });
}

bool IsDisruption(const Json& pod) {
  const std::string reason = TextAt(pod, {"status", "reason"});
  return std::find(kDisruptions.begin(), kDisruptions.end(), reason) != kDisruptions.end() ||
         reason.starts_with("OutOf") || ConditionIs(pod, "DisruptionTarget", "True");
}

std::string TroubleOf(const Json& pod) {
  if (ConditionIs(pod, "PodScheduled", "False")) {
    return "no machine takes it: " +
           TextAt(ConditionOf(pod, "PodScheduled"), {"message"}).substr(0, kMostTrouble);
  }
  for (const char* list : {"initContainerStatuses", "containerStatuses"}) {
    const Json& statuses = At(pod, {"status", list});
    if (!statuses.is_array()) continue;
    for (const Json& container : statuses) {
      const std::string reason = TextAt(container, {"state", "waiting", "reason"});
      if (reason.empty() || reason == "ContainerCreating" || reason == "PodInitializing") continue;
      return "container " + TextAt(container, {"name"}) + ": " + reason + ": " +
             TextAt(container, {"state", "waiting", "message"}).substr(0, kMostTrouble);
    }
  }
  return {};
}

PodFate FateOf(const Json& pod, const std::optional<int64_t>& exit_code) {
  const std::string phase = TextAt(pod, {"status", "phase"});
  if (phase == "Succeeded") return PodFate::kSucceeded;
  if (phase == "Failed") {
    return IsDisruption(pod) || !exit_code ? PodFate::kDisrupted : PodFate::kFailed;
  }
  if (phase != "Running") return PodFate::kWaiting;
  return ConditionIs(pod, "Ready", "True") ? PodFate::kReady : PodFate::kStarting;
}

}  // namespace

PodView ReadPod(const Json& pod) {
  PodView view;
  view.name = TextAt(pod, {"metadata", "name"});
  view.uid = TextAt(pod, {"metadata", "uid"});
  view.ip = TextAt(pod, {"status", "podIP"});
  view.plan = TextAt(pod, {"metadata", "labels", kPlanLabel});
  const std::string number = TextAt(pod, {"metadata", "labels", kIncarnationLabel});
  const auto parsed = std::from_chars(number.data(), number.data() + number.size(), view.incarnation);
  if (parsed.ec != std::errc() || parsed.ptr != number.data() + number.size()) view.incarnation = -1;
  view.exit_code = ExitCodeOf(pod);
  view.fate = FateOf(pod, view.exit_code);
  view.key_refused = RefusesKey(pod);
  view.created = ParseTimestamp(TextAt(pod, {"metadata", "creationTimestamp"})).value_or(Instant());
  if (!At(pod, {"metadata", "deletionTimestamp"}).is_null()) {
    view.deleting_until =
        ParseTimestamp(TextAt(pod, {"metadata", "deletionTimestamp"})).value_or(view.created);
  }
  view.ends =
      view.deleting_until || view.fate >= PodFate::kSucceeded || ConditionIs(pod, "DisruptionTarget", "True");
  const Json& scheduled = ConditionOf(pod, "PodScheduled");
  view.unschedulable = view.fate == PodFate::kWaiting && TextAt(scheduled, {"status"}) == "False" &&
                       TextAt(scheduled, {"reason"}) == "Unschedulable";
  if (view.fate == PodFate::kWaiting || view.fate == PodFate::kStarting) view.trouble = TroubleOf(pod);
  return view;
}

}  // namespace longhaul::kube
