// The objects of a job, as the API server gets them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "operator/plan/job_plan.h"
#include "operator/reconcile/commands.h"
#include "operator/reconcile/observed.h"

namespace longhaul::kube {

// Names of the objects: <job>-<part>.
std::string PlanName(const TrainingJob& job);     // ConfigMap
std::string ServerName(const TrainingJob& job);   // StatefulSet and its headless Service
std::string PublicName(const TrainingJob& job);   // Service of type NodePort or LoadBalancer
std::string NodesName(const TrainingJob& job);    // headless Service of the worker pods
std::string StorageName(const TrainingJob& job);  // PersistentVolumeClaim
std::string KeyName(const TrainingJob& job);      // Secret
std::string AnchorName(const TrainingJob& job);   // ConfigMap that owns a remote site's objects

// Where objects of a remote site hang on: its anchor. Of the job's own cluster: the job.
struct Owner {
  std::string cluster;
  Json reference;  // an entry of metadata.ownerReferences
};
Owner JobOwner(const TrainingJob& job);
Owner AnchorOwner(const std::string& cluster, const Json& anchor);

Json PlanMap(const TrainingJob& job, const JobPlan& plan, const Owner& owner);
Json KeySecret(const TrainingJob& job, const std::string& hex_key, const Owner& owner);
Json StorageClaim(const TrainingJob& job);
// Gives the server's pod a name before it is ready: workers may look it up while it starts.
Json ServerService(const TrainingJob& job);
Json PublicService(const TrainingJob& job);
Json NodesService(const TrainingJob& job, const Owner& owner);
// The parts are its labels longhaul.dev/incarnation and longhaul.dev/start-workers, too.
Json ServerSet(const TrainingJob& job, const NodeConfig& config, const JobPlan& plan,
               const Settings& settings, const ServerParts& parts, const std::string& hex_key);
Json Anchor(const TrainingJob& job);

// One training node: its engine and its ranks.
struct WorkerPodParts {
  size_t rank = 0;
  int64_t incarnation = 0;
  std::string server_address;
  std::string hex_key;
};
Json WorkerPod(const TrainingJob& job, const NodeConfig& config, const JobPlan& plan,
               const Settings& settings, const WorkerPodParts& parts, const Owner& owner);

// "longhaul-server:7700", as a pod of that cluster reaches it. Of another cluster it follows from what is
// observed of the service and of the server's pod; none while it is not known, several of a load balancer.
std::vector<std::string> ServerAddresses(const TrainingJob& job, bool remote, const Json& public_service,
                                         const Json& server_pod);

}  // namespace longhaul::kube
