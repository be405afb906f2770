#include "operator/reconcile/provisioner.h"

#include <algorithm>
#include <utility>

#include "operator/reconcile/commands.h"

namespace longhaul::kube {
namespace {

// Beyond a pod's grace: its machine is silent, and the pod is taken out of the way by force. A process that
// still runs there is fenced: of an earlier attempt by the server's --min-incarnation, else by its
// successor's.
constexpr Duration kForce = std::chrono::minutes(1);

}  // namespace

bool Provisioner::ReleasedBeforeStart() const {
  const Condition* ready = next_.Find("NodesReady");
  return !started() && job_.spec.capacity == Capacity::kDiscovered && ready != nullptr &&
         ready->reason == "Unschedulable";
}

void Provisioner::Provision() {
  ProvisionServer();
  ProvisionRemote();
  ProvisionPods();
}

void Provisioner::ProvisionServer() {
  const auto need = [&](Json object) {
    if (!Find(TextAt(object, {"kind"}), TextAt(object, {"metadata", "name"})).is_null()) return;
    waits_for_objects_ = true;
    Create(std::move(object));
  };
  need(NodesService(job_, JobOwner(job_)));
  if (job_.spec.server.external) return;
  if (job_.spec.server.storage) need(StorageClaim(job_));
  need(ServerService(job_));
  if (job_.spec.server.expose == Expose::kNodePort || job_.spec.server.expose == Expose::kLoadBalancer) {
    need(PublicService(job_));
  }
  // It is not read: made as long as the server may wait for it.
  if (!ServerReady()) Create(KeySecret(job_, seen_.job_key, JobOwner(job_)));
  if (!has_config_) return;  // what cannot be made is not replaced
  need(ServerSet(job_, config_, plan_, settings_, {next_.attempt, Left()}, seen_.job_key));
  // That of a plan before has another number of members, that of an attempt before lets its pods in.
  if (!ServerCurrent() || ServerWaitsForEnded()) StopServer();
}

bool Provisioner::ServerWaitsForEnded() const {
  // In mid-job only where none trains, or is about to: a server in use stays.
  const bool idle = !started() || CountOf(NodePhase::kReady) + CountOf(NodePhase::kStarting) == 0;
  const Json& set = Find("StatefulSet", ServerName(job_));
  return idle && Left() > 0 && !set.is_null() &&
         TextAt(set, {"metadata", "labels", kStartLabel}) != std::to_string(Left());
}

void Provisioner::StopServer() {
  const Json& set = Find("StatefulSet", ServerName(job_));
  stops_server_ = true;
  if (!set.is_null() && At(set, {"metadata", "deletionTimestamp"}).is_null()) Delete(set, "");
}

void Provisioner::ProvisionRemote() {
  for (const std::string& cluster : RemoteClusters()) {
    if (!Reachable(cluster)) continue;
    const auto owner = OwnerIn(cluster);
    if (!owner) {
      waits_for_objects_ = true;
      Create(Anchor(job_), cluster);
      continue;
    }
    const Json& map = Find("ConfigMap", PlanName(job_), cluster);
    if (map.is_null()) {
      if (!CreatePlan(*owner, cluster)) RequeueIn(kSoon);
    } else if (TextAt(map, {"data", "planHash"}) != plan_.hash) {
      waits_for_objects_ = true;
      Delete(map, cluster);  // of the plan before, and immutable
    }
    if (Find("Service", NodesName(job_), cluster).is_null()) {
      // The Secret first: what ends between the two comes here again.
      if (!job_.spec.server.external) Create(KeySecret(job_, seen_.job_key, *owner), cluster);
      Create(NodesService(job_, *owner), cluster);
    }
  }
}

void Provisioner::ProvisionPods() {
  for (size_t rank = 0; rank < next_.nodes.size(); ++rank) {
    const NodeStatus& node = next_.nodes[rank];
    const std::string cluster = ClusterOf(node.site);
    if (!Reachable(cluster) || node.phase == NodePhase::kSucceeded) continue;
    const auto found = pods_.find(node.name);
    if (node.phase == NodePhase::kLost) {
      // One that was given up is not to begin later.
      if (found != pods_.end() && !found->second.view.ends) Delete(*found->second.object, cluster);
      continue;
    }
    if (found != pods_.end()) {
      const PodView& pod = found->second.view;
      if (pod.incarnation == Incarnation(node) && pod.plan == next_.plan_hash) continue;
      waits_for_objects_ = true;
      if (node.retry_at && *node.retry_at > now_ && pod.fate >= PodFate::kSucceeded) {
        RequeueAt(*node.retry_at);  // its log may be read until the next one needs the name
      } else if (!pod.deleting_until) {
        Delete(*found->second.object, found->second.cluster);
      } else if (*pod.deleting_until + kForce <= now_) {
        Delete(*found->second.object, found->second.cluster, 0);
      } else {
        RequeueAt(*pod.deleting_until + kForce);
      }
      continue;
    }
    waits_for_objects_ = true;
    if (node.retry_at && *node.retry_at > now_) {
      RequeueAt(*node.retry_at);
      continue;
    }
    if (ReleasedBeforeStart()) {
      RequeueIn(kSoon);
      continue;
    }
    const auto owner = OwnerIn(cluster);
    const std::string address = ServerAddressFor(cluster);
    // A pod without a server would fail, and count; one whose server is about to go likewise.
    if (!has_config_ || !plan_seen_ || !owner || !ServerReady() || stops_server_ || address.empty()) {
      RequeueIn(kLookAgain);
      continue;
    }
    // Its Secret may have gone since the first pod.
    if (node.retries + node.disruptions > 0 && !job_.spec.server.external)
      Create(KeySecret(job_, seen_.job_key, *owner), cluster);
    Create(
        WorkerPod(job_, config_, plan_, settings_, {rank, Incarnation(node), address, seen_.job_key}, *owner),
        cluster);
    RequeueIn(kSoon);
  }
  // Pods of a plan that had more nodes.
  for (const auto& [name, pod] : pods_) {
    const bool planned = std::any_of(next_.nodes.begin(), next_.nodes.end(),
                                     [&name = name](const NodeStatus& node) { return node.name == name; });
    if (!planned && !pod.view.deleting_until) Delete(*pod.object, pod.cluster);
  }
}

}  // namespace longhaul::kube
