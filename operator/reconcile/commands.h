// The command lines in the pods.
#pragma once

#include <string>
#include <vector>

#include "operator/plan/job_plan.h"

namespace longhaul::kube {

// Ports beside the server's own, for probes and metrics.
inline constexpr int kServerMetricsPort = 9464;
inline constexpr int kEngineMetricsPort = 9465;
// How long workers wait for a server that is lost in mid-job: a new pod of it has to be scheduled and to read
// its checkpoint.
inline constexpr int kReconnectSeconds = 600;
// How long an engine tries to reach the server, and waits for the other nodes to come.
inline constexpr int kJoinSeconds = 1800;
// Of a rank inside a pod: one passing fault of a GPU; what fails again makes the pod fail, whose next one may
// get another machine.
inline constexpr int kRankRestarts = 1;

inline constexpr const char* kSocketPath = "/run/longhaul/site.sock";
inline constexpr const char* kKeyPath = "/etc/longhaul/key/job.key";
inline constexpr const char* kScriptPath = "/longhaul/plan/script";
inline constexpr const char* kDataPath = "/data";
inline constexpr const char* kCheckpointMount = "/checkpoints";

// Of a key that server, engines and tools share (longhaul keygen).
std::string KeyFile(const std::string& job, const std::string& hex_key);

struct ServerParts {
  int64_t attempt = 0;       // pods of earlier ones are refused
  size_t start_workers = 0;  // members that start the rounds; 0: all of the plan
};
std::vector<std::string> ServerCommand(const TrainingJob& job, const JobPlan& plan, const ServerParts& parts);
// The ring of a pod's GPUs, and its one connection to the server.
std::vector<std::string> EngineCommand(const TrainingJob& job, const JobPlan& plan, size_t rank,
                                       int64_t incarnation, const std::string& server_address);
// The ranks of a pod. `command` is the template's; none: the script, by its first line or else by python3.
std::vector<std::string> TrainerCommand(int gpus, const std::string& script,
                                        const std::vector<std::string>& command);

}  // namespace longhaul::kube
