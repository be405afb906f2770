// An API server, a scheduler, kubelets and a StatefulSet controller in memory: maps of objects, in virtual
// time.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/random.h"
#include "operator/reconcile/reconcile.h"

namespace longhaul::kube {

inline Instant Seconds(int64_t seconds) { return Instant::FromNanoseconds(seconds * 1'000'000'000); }
inline constexpr int64_t kEpoch = 1'764'000'000;  // 2025-11-24

// A job of 15 GPUs on nodes of at most 10, as a person writes it.
Json JobObject();
Json ProfileObject();

class ModelCluster {
 public:
  explicit ModelCluster(Json job);

  Instant now() const { return Seconds(seconds_); }
  void Advance(int64_t seconds) { seconds_ += seconds; }

  Observed Observe() const;
  // What an API server makes of it; false where it refuses.
  bool Do(const Action& action);
  // Reconcile and all of its actions; what it said.
  Decision Reconciled();
  // Until nothing changes any more, with a second between.
  void Settle(int most = 50);

  // Kubelets and controllers do all that they have to do.
  void RunControllers();
  // Pods become ready; a pod has ended.
  void MakeReady();
  void MakeReady(const std::string& name);
  void EndPod(const std::string& name, int exit_code);
  void EvictPod(const std::string& name);
  void BlockPod(const std::string& name, const std::string& why);  // no machine takes it
  void RemovePod(const std::string& name) { In(ClusterOfPod(name)).erase("Pod/" + name); }
  void DeleteByHand(const std::string& key);

  Json* Get(const std::string& key, const std::string& cluster = "");
  Json* Pod(const std::string& name) { return Get("Pod/" + name, ClusterOfPod(name)); }
  std::vector<std::string> Workers() const;  // names of worker pods, of all clusters
  const Json& job() const { return job_; }
  Json& mutable_job() { return job_; }
  JobStatus status() const { return ParseJobStatus(kube::At(job_, {"status"})); }
  bool IsTrue(std::string_view type) const { return status().IsTrue(type); }
  bool gone() const { return job_.is_null(); }
  std::string Saw(std::string_view event_reason) const;  // its message, "" where there was none

  Settings settings;
  Permission permission = Permission::kAllowed;
  std::string permission_message;
  Json profile = ProfileObject();
  std::optional<Json> script_map;
  std::vector<FreeGpus> free;
  std::set<std::string> unreachable;
  bool kubelets_alive = true;                           // else deleted pods stay
  std::map<std::string, std::vector<int64_t>> created;  // pod -> incarnations
  std::vector<std::string> wrong;                       // what must not have happened

 private:
  void CheckStatus(const Json& status);

  int64_t seconds_ = kEpoch;
  uint64_t next_uid_ = 1, next_version_ = 100;
  int64_t newest_ = 0;  // incarnation of a pod that was made
  Json job_;
  std::map<std::string, Json> objects_;                                // "Pod/x" -> object
  std::map<std::string, std::map<std::string, Json>> remote_objects_;  // the same of other clusters
  std::vector<Json> events_;

  std::string ClusterOfPod(const std::string& name) const;  // "" where there is none of the name
  std::map<std::string, Json>& In(const std::string& cluster) {
    return cluster.empty() ? objects_ : remote_objects_[cluster];
  }
};

}  // namespace longhaul::kube
