// A job's plan: which nodes it has, how many GPUs each, and what they run. Made once, kept in the ConfigMap
// <job>-plan, and immutable once the job has started.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "operator/plan/allocation.h"
#include "operator/resource/training_job.h"

namespace longhaul::kube {

// The members that one longhaul-server has at most (--workers).
inline constexpr size_t kMostNodes = 1024;

struct PlannedNode {
  std::string name;  // of its pod: <job>-node-<rank>
  std::string site;
  int gpus = 0;

  bool operator==(const PlannedNode&) const = default;
};

// Ranks are the nodes' places.
struct JobPlan {
  std::vector<PlannedNode> nodes;
  std::string script;  // or its mark
  std::string hash;    // of all of the above, the same for both

  bool operator==(const JobPlan&) const = default;
};

// What a machine of a site has free of the job's GPU resource.
struct FreeGpus {
  std::string site;
  int gpus = 0;
};

struct PlanError {
  std::string reason;  // "Unsplittable"
  std::string message;
  bool may_pass = false;  // it may be different later: GPUs become free
};

// `free` counts with allocation.capacity Discovered alone. Sites have quotas: as few sites as there can be,
// and a site's part is split over its nodes.
std::variant<JobPlan, PlanError> MakePlan(const TrainingJob& job, const NodeConfig& config,
                                          const std::vector<FreeGpus>& free, std::string script);

// FNV-1a of 64 bits, in hexadecimal digits: it tells texts apart, and protects against nothing.
std::string Fingerprint(std::string_view text);

// The plan of nodes that are known already.
JobPlan PlanOf(std::vector<PlannedNode> nodes, std::string script);
std::string NodeName(std::string_view job, size_t rank);

// nodes.json of the ConfigMap, and back: kInvalidArgument where it was changed by other hands.
std::string NodesJson(const JobPlan& plan);
Result<std::vector<PlannedNode>> ParseNodesJson(std::string_view text);

}  // namespace longhaul::kube
