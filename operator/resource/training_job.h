// A TrainingJob as the API server has it: the request of a person (spec) and what the operator knows
// (status).
//
// Every rule of the custom resource definition is checked here once more: old API servers drop the CEL rules
// silently, and an object may be older than its rules.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/instant.h"
#include "operator/resource/fields.h"
#include "operator/resource/job_status.h"
#include "operator/resource/training_profile.h"

namespace longhaul {

namespace kube {

inline constexpr std::string_view kApiVersion = "longhaul.dev/v1alpha1";
// A webhook stamps them: the user that made the job, what else is known of it (requester.h), and that this is
// so (stamp.h).
inline constexpr std::string_view kRequesterAnnotation = "longhaul.dev/requester";
inline constexpr std::string_view kIdentityAnnotation = "longhaul.dev/requester-identity";
inline constexpr std::string_view kProofAnnotation = "longhaul.dev/requester-proof";
inline constexpr std::string_view kFinalizer = "longhaul.dev/remote-sites";

// How GPUs are dealt out to nodes; whether what nodes have is said by the profile, or seen in the cluster;
// how workers of other clusters reach the server.
enum class Strategy : uint8_t { kPacked, kBalanced };
enum class Capacity : uint8_t { kDeclared, kDiscovered };
enum class Expose : uint8_t { kHeadless, kNodePort, kLoadBalancer, kHostNetwork };

inline constexpr int kMostGpus = 4096;
inline constexpr size_t kMostScriptBytes = size_t{256} << 10;  // of the 1 MiB that a ConfigMap may have
inline constexpr uint16_t kServerPort = 7700;
// Of the objects' names "<job>-server" is a StatefulSet's, whose pods have its name and a hash of 11
// characters in a label of 63: 63 - 11 - 7.
inline constexpr size_t kMostNameBytes = 45;

struct Script {
  std::optional<std::string> text;  // inline, or
  std::string config_map, key;      // of a ConfigMap in the job's namespace
};

struct TrainingData {
  std::string claim, sub_path;  // of a PersistentVolumeClaim, or
  std::string uri;
};

// One that runs already; `join_secret` has its key as the entry job.key.
struct ExternalServer {
  std::string host;
  uint16_t port = kServerPort;
  std::string join_secret;
};

// Of checkpoints and the round log.
struct Storage {
  std::string size, storage_class;
};

struct ServerSpec {
  uint16_t port = kServerPort;
  Expose expose = Expose::kHeadless;
  std::optional<Storage> storage;  // none: a job whose server's pod is replaced begins anew
  std::optional<ExternalServer> external;
};

// A cluster, or a part of this one.
struct Site {
  std::string name;
  int gpus = 0;
  std::string kubeconfig_secret = {};  // "": this cluster
  std::map<std::string, std::string> node_selector = {};
};

struct RunPolicy {
  bool suspend = false;
  std::optional<Duration> start_deadline, active_deadline, ttl_after_finished;
};

struct TrainingJobSpec {
  std::string profile;             // its name, or
  std::optional<NodeConfig> node;  // inline
  int total_gpus = 0;
  std::string image;
  Script script;
  std::optional<TrainingData> data;
  Strategy strategy = Strategy::kPacked;
  Capacity capacity = Capacity::kDeclared;
  ServerSpec server;
  std::vector<Site> sites;
  std::optional<int> min_nodes;  // elastic.minNodes
  RunPolicy run_policy;
};

struct TrainingJob {
  std::string name, name_space, uid, resource_version;
  std::string requester, requester_identity;
  int64_t generation = 0;
  Instant created;
  std::optional<Instant> deleted;
  bool has_finalizer = false;
  TrainingJobSpec spec;
  // What is wrong with the spec: with its inline template (`bad_template`), or with all else. The spec may be
  // used where both are Ok.
  Status spec_status, bad_template;
  JobStatus status;
};

// kInvalidArgument where metadata lacks what identifies the object; problems of the spec are in the job.
Result<TrainingJob> ParseTrainingJob(const Json& object);

// For webhooks: all that is wrong with a new job.
Status CheckCreate(const Json& object);
// What may change after creation: spec.runPolicy and spec.elastic.minNodes. Everything else of the spec is
// refused, by name, and what is allowed has to be right.
Status CheckUpdate(const Json& old_object, const Json& new_object);

}  // namespace kube

template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<kube::Strategy> = {"Packed", "Balanced"};
template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<kube::Capacity> = {"Declared", "Discovered"};
template <>
inline constexpr std::array<std::string_view, 4> kNamesOf<kube::Expose> = {"Headless", "NodePort",
                                                                           "LoadBalancer", "HostNetwork"};

}  // namespace longhaul
