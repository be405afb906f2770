// The configuration of training nodes: a TrainingProfile, or the same fields inline in a job.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "operator/resource/fields.h"
#include "operator/resource/node_template.h"

namespace longhaul {

namespace kube {

// What becomes of a job's pods at its end: all are deleted, those that still run, none. After a failure kAll
// is kRunning, so that the logs survive.
enum class CleanPolicy : uint8_t { kAll, kRunning, kNone };

// 3: the ring of a node (requirement S8). 62: the ranks of a site with one connection to the server
// (longhaul-offload --server: --nodes x --ranks-per-node).
inline constexpr int kLeastGpusOfNode = 3;
inline constexpr int kMostGpusOfNode = 62;

struct NodeConfig {
  std::string gpu_resource = "nvidia.com/gpu";
  int max_gpus = 0;
  int min_gpus = kLeastGpusOfNode;
  int max_retries = 3;  // of each node
  CleanPolicy clean_policy = CleanPolicy::kAll;
  Json node_template;  // checked; null where there is none

  bool operator==(const NodeConfig&) const = default;
};

struct TrainingProfile {
  std::string name;
  NodeConfig config;
};

// Reads a configuration: gpuResource, maxGPUs, minGPUs, maxRetries, cleanPolicy, nodeTemplate. A template
// that is refused is in *bad_template, all else in the fields' own status.
NodeConfig ReadNodeConfig(Fields fields, TemplateOrigin origin, Status* bad_template);

// kInvalidArgument names the field and the remedy.
Result<TrainingProfile> ParseTrainingProfile(const Json& object);

}  // namespace kube

template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<kube::CleanPolicy> = {"All", "Running", "None"};

}  // namespace longhaul
