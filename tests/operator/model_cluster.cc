#include "tests/operator/model_cluster.h"

#include <algorithm>

#include "operator/reconcile/pods.h"
#include "operator/resource/timestamps.h"

namespace longhaul::kube {
namespace {

std::string KeyOf(const Json& object) {
  return TextAt(object, {"kind"}) + "/" + TextAt(object, {"metadata", "name"});
}

bool IsWorker(const Json& object) { return TextAt(object, {"metadata", "labels", kRoleLabel}) == "worker"; }

void SetCondition(Json* pod, const std::string& type, const std::string& value,
                  const std::string& reason = "", const std::string& message = "") {
  Json& conditions = (*pod)["status"]["conditions"];
  if (!conditions.is_array()) conditions = Json::array();
  for (Json& condition : conditions) {
    if (condition["type"] == type) {
      condition["status"] = value;
      condition["reason"] = reason;
      return;
    }
  }
  conditions.push_back({{"type", type}, {"status", value}, {"reason", reason}, {"message", message}});
}

bool Ended(const Json& pod) {
  const std::string phase = TextAt(pod, {"status", "phase"});
  return phase == "Succeeded" || phase == "Failed";
}

}  // namespace

Json ProfileObject() {
  return {{"metadata", {{"name", "a100"}, {"namespace", "team"}}},
          {"spec", {{"maxGPUs", 10}, {"maxRetries", 3}}}};
}

Json JobObject() {
  return {{"apiVersion", kApiVersion},
          {"kind", "TrainingJob"},
          {"metadata",
           {{"name", "resnet"},
            {"namespace", "team"},
            {"uid", "uid-of-resnet"},
            {"generation", 1},
            {"resourceVersion", "7"},
            {"annotations", {{std::string(kRequesterAnnotation), "ada"}}},
            {"creationTimestamp", TimestampText(Seconds(kEpoch))}}},
          {"spec",
           {{"profileRef", {{"name", "a100"}}},
            {"totalGPUs", 15},
            {"image", "registry.example/train:1"},
            {"script", {{"inline", "#!/usr/bin/python3\nprint()\n"}}},
            {"data", {{"claimName", "imagenet"}, {"subPath", "train"}}},
            {"server", {{"storage", {{"size", "20Gi"}}}}}}}};
}

ModelCluster::ModelCluster(Json job) : job_(std::move(job)) {}

Observed ModelCluster::Observe() const {
  Observed seen;
  seen.job = job_;
  if (!profile.is_null()) seen.profile = profile;
  for (const auto& [key, object] : objects_) {
    if (TextAt(object, {"kind"}) != "Secret") seen.objects.push_back({"", object});
  }
  for (const auto& [cluster, objects] : remote_objects_) {
    if (unreachable.contains(cluster)) continue;
    for (const auto& [key, object] : objects) seen.objects.push_back({cluster, object});
  }
  seen.script_map = script_map;
  seen.free = free;
  seen.permission = permission;
  seen.permission_message = permission_message;
  seen.job_key = std::string(64, 'a');
  seen.unreachable = unreachable;
  return seen;
}

void ModelCluster::CheckStatus(const Json& status) {
  const JobStatus next = ParseJobStatus(status);
  const JobStatus before = this->status();
  if (next.IsTrue("Started") && !before.IsTrue("Started")) {
    size_t there = 0;
    for (const NodeStatus& node : next.nodes) {
      const bool ended = node.phase == NodePhase::kLost || node.phase == NodePhase::kSucceeded;
      const auto pod = objects_.find("Pod/" + node.name);
      const bool remote = !node.site.empty() && pod == objects_.end();
      there += ended || remote || (pod != objects_.end() && ReadPod(pod->second).fate == PodFate::kReady);
    }
    if (next.nodes.empty() || there < next.nodes.size()) wrong.push_back("started without all of its pods");
  }
  if (next.attempt < before.attempt) wrong.push_back("an attempt went back");
  if (next.attempt > before.attempt && next.attempt <= newest_)
    wrong.push_back("the new attempt's server would let pods of the one before in");
  if (IsTerminal(before.phase) && next.phase != before.phase) wrong.push_back("an end was left");
}

bool ModelCluster::Do(const Action& action) {
  const Json& object = action.object;
  if (unreachable.contains(action.cluster)) return false;
  auto& objects = In(action.cluster);
  switch (action.verb) {
    case Verb::kEvent:
      events_.push_back(object);
      return true;
    case Verb::kPatchStatus:
    case Verb::kPatchJob: {
      if (job_.is_null() || object["metadata"]["resourceVersion"] != job_["metadata"]["resourceVersion"])
        return false;
      if (action.verb == Verb::kPatchStatus) {
        CheckStatus(object["status"]);
        job_["status"] = object["status"];
      } else {
        job_["metadata"]["finalizers"] = object["metadata"]["finalizers"];
      }
      job_["metadata"]["resourceVersion"] = std::to_string(next_version_++);
      return true;
    }
    case Verb::kCreate: {
      Json made = object;
      if (objects.contains(KeyOf(object))) return false;
      made["metadata"]["uid"] = "uid-" + std::to_string(next_uid_++);
      made["metadata"]["creationTimestamp"] = TimestampText(now());
      if (made["kind"] == "Pod") {
        made["status"]["phase"] = "Pending";
        const int64_t incarnation = ReadPod(made).incarnation;
        created[made["metadata"]["name"]].push_back(incarnation);
        newest_ = std::max(newest_, incarnation);
        const auto set = objects_.find("StatefulSet/" + TextAt(job_, {"metadata", "name"}) + "-server");
        if (set != objects_.end() && TextAt(set->second, {"metadata", "labels", kIncarnationLabel}) !=
                                         std::to_string(status().attempt))
          wrong.push_back("a pod was made beside the server of another attempt");
      }
      objects.emplace(KeyOf(made), std::move(made));
      return true;
    }
    case Verb::kDelete: {
      if (object["kind"] == "TrainingJob") {
        if (!job_.is_null() && job_["metadata"]["uid"] == object["metadata"]["uid"]) job_ = nullptr;
        return true;
      }
      const auto found = objects.find(KeyOf(object));
      if (found == objects.end()) return true;
      if (found->second["metadata"]["uid"] != object["metadata"]["uid"]) return false;
      if (object["kind"] != "Pod" || action.grace_seconds == 0 || Ended(found->second)) {
        objects.erase(found);
      } else if (!found->second["metadata"].contains("deletionTimestamp")) {
        found->second["metadata"]["deletionTimestamp"] = TimestampText(now() + std::chrono::seconds(30));
      }
      return true;
    }
  }
  return false;
}

Decision ModelCluster::Reconciled() {
  Decision decision = Reconcile(settings, Observe(), now());
  for (const Action& action : decision.actions) (void)Do(action);
  return decision;
}

void ModelCluster::Settle(int most) {
  for (int i = 0; i < most && !gone(); ++i) {
    RunControllers();
    const Decision decision = Reconciled();
    Advance(1);
    if (decision.actions.empty()) return;
  }
}

void ModelCluster::RunControllers() {
  const auto ends = [&](const auto& entry) {
    const Json& object = entry.second;
    return object["kind"] == "Pod" && object["metadata"].contains("deletionTimestamp") && kubelets_alive;
  };
  std::erase_if(objects_, ends);
  for (auto& [cluster, objects] : remote_objects_) std::erase_if(objects, ends);
  const std::string name = TextAt(job_, {"metadata", "name"}) + "-server";
  Json* set = Get("StatefulSet/" + name);
  Json* pod = Get("Pod/" + name + "-0");
  if (set == nullptr) {
    if (pod != nullptr) objects_.erase("Pod/" + name + "-0");
    return;
  }
  if (pod == nullptr) {
    Json made = {{"apiVersion", "v1"},
                 {"kind", "Pod"},
                 {"metadata", (*set)["spec"]["template"]["metadata"]},
                 {"status", {{"phase", "Running"}, {"hostIP", "192.0.2.7"}}}};
    made["metadata"]["name"] = name + "-0";
    made["metadata"]["creationTimestamp"] = TimestampText(now());
    objects_.emplace("Pod/" + name + "-0", std::move(made));
    (*set)["status"]["readyReplicas"] = 0;
    return;
  }
  (*set)["status"]["readyReplicas"] = 1;
}

void ModelCluster::MakeReady(const std::string& name) {
  Json* pod = Pod(name);
  if (pod == nullptr || Ended(*pod)) return;
  (*pod)["status"]["phase"] = "Running";
  (*pod)["status"]["podIP"] = "10.0.0.1";
  SetCondition(pod, "PodScheduled", "True");
  SetCondition(pod, "Ready", "True");
}

void ModelCluster::MakeReady() {
  for (const auto& name : Workers()) MakeReady(name);
}

void ModelCluster::EndPod(const std::string& name, int exit_code) {
  Json* pod = Pod(name);
  if (pod == nullptr) return;
  (*pod)["status"]["phase"] = exit_code == 0 ? "Succeeded" : "Failed";
  (*pod)["status"]["containerStatuses"] =
      Json::array({{{"name", "engine"}, {"state", {{"terminated", {{"exitCode", exit_code == 0 ? 0 : 1}}}}}},
                   {{"name", "trainer"}, {"state", {{"terminated", {{"exitCode", exit_code}}}}}}});
}

void ModelCluster::EvictPod(const std::string& name) {
  Json* pod = Pod(name);
  if (pod == nullptr) return;
  EndPod(name, 137);
  (*pod)["status"]["reason"] = "Evicted";
}

void ModelCluster::BlockPod(const std::string& name, const std::string& why) {
  if (Json* pod = Pod(name)) SetCondition(pod, "PodScheduled", "False", "Unschedulable", why);
}

void ModelCluster::DeleteByHand(const std::string& key) {
  const std::string cluster = key.starts_with("Pod/") ? ClusterOfPod(key.substr(4)) : "";
  Json* object = Get(key, cluster);
  if (object == nullptr) return;
  if ((*object)["kind"] == "Pod" && !Ended(*object)) {
    (*object)["metadata"]["deletionTimestamp"] = TimestampText(now() + std::chrono::seconds(30));
  } else {
    In(cluster).erase(key);
  }
}

std::string ModelCluster::ClusterOfPod(const std::string& name) const {
  for (const auto& [cluster, objects] : remote_objects_) {
    if (objects.contains("Pod/" + name)) return cluster;
  }
  return "";
}

Json* ModelCluster::Get(const std::string& key, const std::string& cluster) {
  auto& objects = In(cluster);
  const auto found = objects.find(key);
  return found == objects.end() ? nullptr : &found->second;
}

std::vector<std::string> ModelCluster::Workers() const {
  std::vector<std::string> names;
  const auto add = [&](const std::map<std::string, Json>& objects) {
    for (const auto& [key, object] : objects) {
      if (object["kind"] == "Pod" && IsWorker(object)) names.push_back(object["metadata"]["name"]);
    }
  };
  add(objects_);
  for (const auto& [cluster, objects] : remote_objects_) add(objects);
  return names;
}

std::string ModelCluster::Saw(std::string_view event_reason) const {
  for (auto event = events_.rbegin(); event != events_.rend(); ++event) {
    if (TextAt(*event, {"reason"}) == event_reason) return TextAt(*event, {"message"});
  }
  return "";
}

}  // namespace longhaul::kube
