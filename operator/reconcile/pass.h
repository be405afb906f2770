// One call of Reconcile.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "operator/reconcile/objects.h"
#include "operator/reconcile/pods.h"
#include "operator/reconcile/reconcile.h"

namespace longhaul::kube {

class Pass {
 public:
  Pass(const Settings& settings, const Observed& seen, Instant now, TrainingJob job);
  Decision Run();

 private:
  struct NodePod {
    std::string cluster;
    PodView view;
    const Json* object = nullptr;
  };

  // create: from the request to a plan. True where the next step may follow.
  bool TakeConfiguration();
  bool Authorize();
  bool EnsurePlan();
  bool MakeNewPlan(const std::string& script);
  bool Adopt(const JobPlan& plan);
  std::optional<std::string> ScriptText();
  bool ReleasedBeforeStart() const;
  bool WantsAnotherPlan() const;
  bool StatusHasPlan() const;

  // determine: what has become of the nodes. True where something was counted.
  bool CountNodes();
  void CountNode(size_t rank, bool* release);
  void Again(size_t rank, bool own_failure, const std::string& why);
  void Lose(size_t rank);
  void ReleaseGang();

  // control: objects, pods, phases.
  void Provision();
  void ProvisionServer();
  void ProvisionRemote();
  void ProvisionPods();
  void StopServer();
  void Assess();
  void Complete();
  void Suspend();
  void Resume();
  bool Overdue();

  // The end.
  void Fail(std::string_view reason, std::string message);
  void Finish(Phase phase, std::string_view reason, std::string message);
  void CleanUp();
  void LetGo();  // the job is being deleted
  bool HoldFinalizer();
  void PatchFinalizers(Json finalizers);

  void To(Phase phase, std::string_view reason, std::string message);
  void Set(std::string_view type, bool value, std::string_view reason, std::string message);
  void Event(bool warning, std::string_view reason, const std::string& message);
  void Create(Json object, const std::string& cluster = "");
  void Delete(const Json& object, const std::string& cluster, std::optional<int64_t> grace = std::nullopt);
  void RequeueAt(Instant at);
  void RequeueIn(Duration time) { RequeueAt(now_ + time); }
  Json JobHead() const;
  Decision Publish();

  // Of this job, by its uid; null where it was not seen.
  const Json& Find(std::string_view kind, const std::string& name, const std::string& cluster = "") const;
  const Json& ServerPod() const;
  bool ServerReady() const;
  bool ServerGone() const;
  std::string ClusterOf(std::string_view site) const;
  std::vector<std::string> RemoteClusters() const;
  std::optional<Owner> OwnerIn(const std::string& cluster) const;
  int64_t Incarnation(const NodeStatus& node) const;
  bool Reachable(const std::string& cluster) const { return !seen_.unreachable.contains(cluster); }
  size_t CountOf(NodePhase phase) const;
  // As many as elastic.minNodes asks for; false without it.
  bool EnoughFor(size_t nodes) const;
  bool started() const { return next_.IsTrue("Started"); }

  const Settings& settings_;
  const Observed& seen_;
  const Instant now_;
  const TrainingJob job_;
  JobStatus next_;
  NodeConfig config_;
  JobPlan plan_;
  bool plan_seen_ = false;  // its ConfigMap is there
  std::map<std::string, NodePod> pods_;
  std::string trouble_;  // of the first pod that has any
  bool waits_for_objects_ = false;
  Decision out_;
};

}  // namespace longhaul::kube
