// A job's status: the operator's whole memory of it. What is not in here, or in the objects of the job, is
// not known after a restart.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/instant.h"
#include "operator/resource/fields.h"

namespace longhaul {

namespace kube {

enum class Phase : uint8_t {
  kPending,
  kPlanned,
  kProvisioning,
  kStarting,
  kRunning,
  kRestarting,
  kSuspended,
  kCompleting,
  kSucceeded,
  kFailed,
};
constexpr bool IsTerminal(Phase phase) { return phase == Phase::kSucceeded || phase == Phase::kFailed; }

// kPending: no pod of its attempt was seen. kLost: its retries are used up, and the job goes on without it.
enum class NodePhase : uint8_t { kPending, kStarting, kReady, kSucceeded, kLost };

struct NodeStatus {
  std::string name, site;
  int gpus = 0;
  NodePhase phase = NodePhase::kPending;
  std::string pod_ip;
  int retries = 0;      // after its own failures
  int disruptions = 0;  // after evictions, preemptions, losses of the machine
  bool joined = false;  // its pod has been ready since the job has started
  std::optional<int64_t> last_exit_code;
  std::optional<Instant> retry_at;  // its next pod is not made before

  bool operator==(const NodeStatus&) const = default;
};

enum class ConditionStatus : uint8_t { kFalse, kTrue, kUnknown };

struct Condition {
  std::string type;
  ConditionStatus status = ConditionStatus::kUnknown;
  std::string reason, message;
  Instant since;  // lastTransitionTime: since when the status is what it is

  bool operator==(const Condition&) const = default;
};

struct JobStatus {
  Phase phase = Phase::kPending;
  std::string reason, message, requester, plan_hash;
  // Counts upwards with every start of all pods anew: resume, release of a gang. With a node's retries and
  // disruptions it is the incarnation of the node's pod, which only grows.
  int64_t attempt = 0;
  int64_t observed_generation = 0;
  std::vector<NodeStatus> nodes;
  std::string ready_nodes;  // "2/2"
  std::optional<Instant> start_time, completion_time;
  std::optional<int64_t> round;  // progress.round: rounds that the server has completed
  std::vector<Condition> conditions;

  bool operator==(const JobStatus&) const = default;

  const Condition* Find(std::string_view type) const;
  bool IsTrue(std::string_view type) const;
  // Since when the condition has been true.
  std::optional<Instant> TrueSince(std::string_view type) const;
  // `since` moves only when the status changes. True where anything has changed.
  bool Set(std::string_view type, ConditionStatus value, std::string_view why, std::string text, Instant now);
};

// Whatever is wrong in it is left out: the operator wrote it, or a person tampered with it.
JobStatus ParseJobStatus(const Json& status);
Json JobStatusJson(const JobStatus& status);

}  // namespace kube

template <>
inline constexpr std::array<std::string_view, 10> kNamesOf<kube::Phase> = {
    "Pending",    "Planned",   "Provisioning", "Starting",  "Running",
    "Restarting", "Suspended", "Completing",   "Succeeded", "Failed"};
template <>
inline constexpr std::array<std::string_view, 5> kNamesOf<kube::NodePhase> = {"Pending", "Starting", "Ready",
                                                                              "Succeeded", "Lost"};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<kube::ConditionStatus> = {"False", "True",
                                                                                    "Unknown"};

}  // namespace longhaul
