// What is seen of a job, and questions about it. With Draft, NodeLedger and Provisioner, each on top of the
// one before, it makes the Pass: one call of Reconcile.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/instant.h"
#include "operator/reconcile/objects.h"
#include "operator/reconcile/observed.h"
#include "operator/reconcile/pods.h"

namespace longhaul::kube {

class JobView {
 protected:
  struct NodePod {
    std::string cluster;
    PodView view;
    const Json* object = nullptr;
  };

  JobView(const Settings& settings, const Observed& seen, Instant now, TrainingJob job);

  // Of this job, by its uid; null where it was not seen.
  const Json& Find(std::string_view kind, const std::string& name, const std::string& cluster = "") const;
  const Json& ServerPod() const;
  bool ServerReady() const;
  // It has the plan's number of members, and refuses pods of earlier attempts.
  bool ServerCurrent() const;
  bool ServerGone() const;
  // Where nothing hands the job over, without a claim or before it trains, a node ends with its server.
  bool LostItsServer(const PodView& pod, bool joined) const;
  // A pod of another cluster whose server's address was one and is none any more.
  bool HasLostAddress(const Json& pod, const std::string& cluster) const;
  // For the nodes of a cluster; "" while it is not known.
  std::string ServerAddressFor(const std::string& cluster) const;
  std::string KeyTaken() const;  // what is wrong with the Secret of the job's key, and the remedy
  // "" where the site is a part of the job's own cluster.
  std::string ClusterOf(std::string_view site) const;
  std::vector<std::string> RemoteClusters() const;
  std::optional<Owner> OwnerIn(const std::string& cluster) const;
  bool Reachable(const std::string& cluster) const { return !seen_.unreachable.contains(cluster); }

  const Settings& settings_;
  const Observed& seen_;
  const Instant now_;
  const TrainingJob job_;
  std::map<std::string, NodePod> pods_;  // workers, by their names
  NodeConfig config_;
  bool has_config_ = true;  // false: the profile is gone, and nothing is made of it
  JobPlan plan_;
  bool plan_seen_ = false;  // its ConfigMap is there
};

}  // namespace longhaul::kube
