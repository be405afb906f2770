#include "operator/reconcile/commands.h"

namespace longhaul::kube {
namespace {

// An engine for each GPU, joined to a ring, as far as longhaul-offload has nodes (--nodes); beyond that one
// engine adds up all of them.
constexpr int kMostOfRing = 16;

// UDP datagrams that every path of the internet and of overlay networks carries; longer ones are found out
// later (path MTU discovery).
constexpr const char* kDatagramSize = "1200";

std::string Port(int port) { return std::to_string(port); }

}  // namespace

std::string KeyFile(const std::string& job, const std::string& hex_key) {
  return "longhaul-psk-v1\njob = " + job + "\npsk = " + hex_key + "\n";
}

std::vector<std::string> ServerCommand(const TrainingJob& job, const JobPlan& plan,
                                       const ServerParts& parts) {
  // --once: a job that is aborted ends the process with 1; the container starts again, and goes on from the
  // round log. --min-workers 1: a lost node does not abort the job, it is the operator that counts.
  // --max-weight-share 1: a node counts with all of its GPUs, also 16 beside 3.
  return {"longhaul-server",
          "--listen",
          "0.0.0.0:" + Port(job.spec.server.port),
          "--workers",
          std::to_string(plan.nodes.size()),
          "--min-workers",
          "1",
          "--min-incarnation",
          std::to_string(parts.attempt),
          "--start-workers",
          std::to_string(parts.start_workers),
          "--job",
          job.name,
          "--key",
          kKeyPath,
          "--checkpoint-dir",
          std::string(kCheckpointMount) + "/job",
          "--round-log",
          "--max-weight-share",
          "1",
          "--once",
          "--datagram-size",
          kDatagramSize,
          "--max-load-generators",
          "0",
          "--metrics",
          "0.0.0.0:" + Port(kServerMetricsPort),
          "--progress",
          "json"};
}

std::vector<std::string> EngineCommand(const TrainingJob& job, const JobPlan& plan, size_t rank,
                                       int64_t incarnation, const std::string& server_address) {
  const PlannedNode& node = plan.nodes[rank];
  const bool ring = node.gpus <= kMostOfRing;
  std::vector<std::string> command = {"longhaul-offload",
                                      "--listen",
                                      kSocketPath,
                                      "--nodes",
                                      std::to_string(ring ? node.gpus : 1),
                                      "--ranks-per-node",
                                      std::to_string(ring ? 1 : node.gpus),
                                      "--server",
                                      server_address,
                                      "--rank",
                                      std::to_string(rank),
                                      "--world-size",
                                      std::to_string(plan.nodes.size()),
                                      "--job",
                                      job.name,
                                      "--incarnation",
                                      std::to_string(incarnation),
                                      "--weight",
                                      std::to_string(node.gpus),
                                      "--key",
                                      kKeyPath,
                                      "--datagram-size",
                                      kDatagramSize,
                                      "--connect-timeout",
                                      std::to_string(kJoinSeconds),
                                      "--wait-timeout",
                                      std::to_string(kJoinSeconds),
                                      "--reconnect-timeout",
                                      std::to_string(kReconnectSeconds),
                                      "--metrics",
                                      "0.0.0.0:" + Port(kEngineMetricsPort),
                                      "--progress",
                                      "json"};
  if (!node.site.empty()) command.insert(command.end(), {"--site", node.site});
  return command;
}

std::vector<std::string> TrainerCommand(int gpus, const std::string& script,
                                        const std::vector<std::string>& command) {
  std::vector<std::string> words = {
      "longhaul-worker",    "--offload",  std::string("unix:") + kSocketPath, "--ranks",
      std::to_string(gpus), "--restarts", std::to_string(kRankRestarts),      "--"};
  // The launcher numbers ranks as those of one engine; in a ring each takes the first engine that is free.
  if (gpus <= kMostOfRing) words.insert(words.end(), {"env", "-u", "LONGHAUL_SITE_RANK"});
  if (!command.empty()) {
    words.insert(words.end(), command.begin(), command.end());
  } else if (script.starts_with("#!")) {
    words.emplace_back(kScriptPath);
  } else {
    words.insert(words.end(), {"python3", kScriptPath});
  }
  return words;
}

}  // namespace longhaul::kube
