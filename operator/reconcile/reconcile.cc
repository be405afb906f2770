#include "operator/reconcile/reconcile.h"

#include <algorithm>
#include <utility>

#include "operator/reconcile/pass.h"

namespace longhaul::kube {
namespace {

constexpr Duration kSoon = std::chrono::seconds(1);       // what was just asked for is seen then
constexpr Duration kLookAgain = std::chrono::seconds(10);  // for what others do: profiles, scripts, free GPUs
// From the request to end to the server's last word: 30 s of grace, and its machine's delay. A checkpoint that
// takes longer is not waited for; the ones before are there.
constexpr Duration kCompletion = std::chrono::minutes(2);
// Beyond a pod's grace: its machine is silent, and the pod is taken out of the way by force. A process that
// still runs there is fenced by its incarnation.
constexpr Duration kForce = std::chrono::minutes(1);

constexpr Instant WholeSeconds(Instant now) {
  return Instant::FromNanoseconds(now.nanoseconds() / 1'000'000'000 * 1'000'000'000);
}

const Json kNone;

}  // namespace

Duration Backoff(int64_t n) { return std::chrono::seconds(n > 6 ? 60 : std::min<int64_t>(60, int64_t{1} << (n - 1))); }

Decision Reconcile(const Settings& settings, const Observed& observed, Instant now) {
  auto job = ParseTrainingJob(observed.job);
  if (!job.ok()) return {};
  return Pass(settings, observed, WholeSeconds(now), std::move(*job)).Run();
}

Pass::Pass(const Settings& settings, const Observed& seen, Instant now, TrainingJob job)
    : settings_(settings), seen_(seen), now_(now), job_(std::move(job)), next_(job_.status) {
  next_.observed_generation = job_.generation;
  if (!job_.requester.empty()) next_.requester = job_.requester;
  if (seen_.progress) next_.progress = seen_.progress;
  for (const SiteObject& one : seen_.objects) {
    const Json& labels = At(one.object, {"metadata", "labels"});
    if (TextAt(one.object, {"kind"}) != "Pod" || TextAt(labels, {kUidLabel}) != job_.uid) continue;
    if (TextAt(labels, {kRoleLabel}) != "worker") continue;
    pods_[TextAt(one.object, {"metadata", "name"})] = {one.cluster, ReadPod(one.object), &one.object};
  }
}

Decision Pass::Run() {
  if (job_.deleted) {
    LetGo();
    return std::move(out_);
  }
  if (IsTerminal(next_.phase)) {
    (void)TakeConfiguration();
    CleanUp();
    return Publish();
  }
  if (!TakeConfiguration() || !Authorize()) return Publish();
  if (HoldFinalizer() || Overdue()) return Publish();
  if (next_.phase == Phase::kCompleting) {
    Complete();
    return Publish();
  }
  if (job_.spec.run_policy.suspend) {
    Suspend();
    return Publish();
  }
  if (next_.phase == Phase::kSuspended) {
    Resume();
    return Publish();
  }
  if (!EnsurePlan()) return Publish();
  // What was counted is written before anything that it was counted from is deleted.
  if (CountNodes()) return Publish();
  Provision();
  Assess();
  return Publish();
}

// --- create: the request

bool Pass::TakeConfiguration() {
  if (IsTerminal(next_.phase)) {
    // For the clean policy alone: what cannot be read any more has the default.
    if (job_.spec.node) config_ = *job_.spec.node;
    if (seen_.profile) {
      if (auto profile = ParseTrainingProfile(*seen_.profile); profile.ok()) config_ = profile->config;
    }
    return true;
  }
  if (!job_.spec_status.ok()) {
    Fail("InvalidSpec", job_.spec_status.message());
    return false;
  }
  if (!job_.bad_template.ok()) {
    Fail("BadTemplate", job_.bad_template.message());
    return false;
  }
  if (job_.spec.node) {
    config_ = *job_.spec.node;
  } else {
    const std::string name = "TrainingProfile " + job_.spec.profile;
    if (!seen_.profile) {
      Set("Planned", false, "ProfileNotFound",
          "there is no " + name + " in this namespace: create it, or delete the job and name another one");
      if (!Overdue()) RequeueIn(kLookAgain);
      return false;
    }
    auto profile = ParseTrainingProfile(*seen_.profile);
    if (!profile.ok()) {
      Set("Planned", false, "InvalidProfile", name + ": " + profile.status().message());
      if (!Overdue()) RequeueIn(kLookAgain);
      return false;
    }
    config_ = std::move(profile->config);
  }
  if (job_.spec.server.expose == Expose::kHostNetwork && !job_.spec.server.external &&
      (job_.spec.node || At(config_.node_template, {"spec", "hostNetwork"}) != true)) {
    Fail("BadTemplate",
         "spec.server.expose: HostNetwork needs a profile whose nodeTemplate.spec.hostNetwork is true: choose NodePort "
         "or LoadBalancer, or ask an administrator for such a profile");
    return false;
  }
  return true;
}

bool Pass::Authorize() {
  // Once allowed, a job runs to its end.
  if (next_.IsTrue("Authorized")) return true;
  const std::string person = next_.requester.empty() ? "the requester" : next_.requester;
  const std::string what =
      job_.spec.profile.empty() ? "all trainingprofiles" : "trainingprofiles/" + job_.spec.profile;
  switch (seen_.permission) {
    case Permission::kAllowed:
      Set("Authorized", true, "Allowed", person + " may use " + what);
      return true;
    case Permission::kDenied:
      Set("Authorized", false, "Denied", person + " may not use " + what);
      Fail("Unauthorized", person + " may not use " + what + ": ask an administrator for the RBAC verb \"use\" on it" +
                               (seen_.permission_message.empty() ? "" : " (" + seen_.permission_message + ")"));
      return false;
    case Permission::kUnknown:
      break;
  }
  (void)next_.Set("Authorized", ConditionStatus::kUnknown, "Asking", "the API server is asked", now_);
  RequeueIn(kSoon);
  return false;
}

// --- determine: the plan

std::optional<std::string> Pass::ScriptText() {
  const Script& script = job_.spec.script;
  if (script.text) return script.text;
  const std::string where = "entry " + script.key + " of ConfigMap " + script.config_map;
  const Json& found = seen_.script_map ? At(*seen_.script_map, {"data", script.key}) : kNone;
  if (!found.is_string()) {
    Set("Planned", false, "ScriptNotFound", "there is no " + where + ": create it");
    RequeueIn(kLookAgain);
    return std::nullopt;
  }
  if (found.get_ref<const std::string&>().size() > kMostScriptBytes) {
    Fail("InvalidSpec", where + " is longer than " + std::to_string(kMostScriptBytes) + " bytes: load what is long from "
                                "the data or the image");
    return std::nullopt;
  }
  return found.get<std::string>();
}

bool Pass::Adopt(const JobPlan& plan) {
  // Every pod of the plan before has a lower incarnation.
  int64_t most = 0;
  for (const NodeStatus& node : next_.nodes) most = std::max<int64_t>(most, node.retries + node.disruptions);
  next_.attempt += most + 1;
  next_.nodes.clear();
  std::string counts;
  for (const PlannedNode& node : plan.nodes) {
    NodeStatus status;
    status.name = node.name;
    status.site = node.site;
    status.gpus = node.gpus;
    next_.nodes.push_back(std::move(status));
    if (counts.size() < 200) counts += (counts.empty() ? "" : " + ") + std::to_string(node.gpus);
  }
  next_.plan_hash = plan.hash;
  next_.ready_nodes = "0/" + std::to_string(plan.nodes.size());
  const std::string message =
      std::to_string(job_.spec.total_gpus) + " GPUs on " + std::to_string(plan.nodes.size()) + " nodes: " + counts;
  Set("Planned", true, "Planned", message);
  Set("NodesReady", false, "Planned", "no pod is there yet");
  To(Phase::kPlanned, "Planned", message);
  RequeueIn(kSoon);
  return false;  // the status first, then its ConfigMap
}

bool Pass::MakeNewPlan(const std::string& script) {
  auto made = MakePlan(job_, config_, seen_.free, script);
  if (const auto* plan = std::get_if<JobPlan>(&made)) {
    if (plan->hash != next_.plan_hash || !StatusHasPlan()) return Adopt(*plan);
    Set("NodesReady", false, "Planned", "the plan stays as it was");
    RequeueIn(kSoon);
    return false;
  }
  const auto& error = std::get<PlanError>(made);
  if (error.may_pass) {
    Set("Planned", false, error.reason, error.message);
    RequeueIn(kLookAgain);
  } else {
    Fail(error.reason, error.message);
  }
  return false;
}

// A gang that was released before the start gets a plan of what is free by now.
bool Pass::ReleasedBeforeStart() const {
  const Condition* ready = next_.Find("NodesReady");
  return !started() && job_.spec.capacity == Capacity::kDiscovered && ready != nullptr &&
         ready->reason == "Unschedulable";
}

bool Pass::WantsAnotherPlan() const {
  if (!ReleasedBeforeStart() || !pods_.empty()) return false;
  return std::all_of(next_.nodes.begin(), next_.nodes.end(),
                     [&](const NodeStatus& node) { return !node.retry_at || *node.retry_at <= now_; });
}

bool Pass::StatusHasPlan() const {
  if (next_.plan_hash.empty() || next_.nodes.empty() || next_.nodes.size() > kMostNodes) return false;
  for (size_t rank = 0; rank < next_.nodes.size(); ++rank) {
    const NodeStatus& node = next_.nodes[rank];
    if (node.name != NodeName(job_.name, rank) || node.gpus < 1 || node.gpus > kMostGpusOfNode) return false;
  }
  return true;
}

bool Pass::EnsurePlan() {
  const Json& map = Find("ConfigMap", PlanName(job_));
  if (!StatusHasPlan() || WantsAnotherPlan()) {
    const auto script = ScriptText();
    return script && MakeNewPlan(*script);
  }
  std::vector<PlannedNode> nodes;
  for (const NodeStatus& node : next_.nodes) nodes.push_back({node.name, node.site, node.gpus});
  if (!map.is_null()) {
    const auto kept = ParseNodesJson(TextAt(map, {"data", "nodes.json"}));
    plan_ = PlanOf(nodes, TextAt(map, {"data", "script"}));
    plan_seen_ = kept.ok() && *kept == nodes && plan_.hash == next_.plan_hash;
    if (plan_seen_) return true;
    // Of the plan before, or changed by other hands.
    Delete(map, "");
    RequeueIn(kSoon);
    return false;
  }
  const auto script = ScriptText();
  if (!script) return false;
  plan_ = PlanOf(std::move(nodes), *script);
  // Its ConfigMap is gone, and the script is another one by now: all begin anew with that.
  if (plan_.hash != next_.plan_hash) return Adopt(plan_);
  Create(PlanMap(job_, plan_, JobOwner(job_)));
  RequeueIn(kSoon);
  return true;
}

// --- determine: what has become of the nodes

int64_t Pass::Incarnation(const NodeStatus& node) const { return next_.attempt + node.retries + node.disruptions; }

void Pass::Again(size_t rank, bool own_failure, const std::string& why) {
  NodeStatus& node = next_.nodes[rank];
  if (own_failure && node.retries >= config_.max_retries) return Lose(rank);
  ++(own_failure ? node.retries : node.disruptions);
  node.phase = NodePhase::kPending;
  node.pod_ip.clear();
  const Duration wait = Backoff(node.retries + node.disruptions);
  node.retry_at = now_ + wait;
  Event(true, own_failure ? "NodeFailed" : "NodeDisrupted",
        node.name + ": " + why + "; a new pod follows in " +
            std::to_string(std::chrono::duration_cast<std::chrono::seconds>(wait).count()) + " s" +
            (own_failure ? " (retry " + std::to_string(node.retries) + " of " + std::to_string(config_.max_retries) + ")"
                         : " (does not count as a retry)"));
}

void Pass::Lose(size_t rank) {
  NodeStatus& node = next_.nodes[rank];
  node.phase = NodePhase::kLost;
  node.pod_ip.clear();
  const std::string what = node.name + " failed with exit code " + std::to_string(node.last_exit_code.value_or(0)) +
                           " after " + std::to_string(node.retries) + " retries: see its log (kubectl logs " + node.name +
                           " -c trainer)";
  const size_t survivors = next_.nodes.size() - CountOf(NodePhase::kLost);
  if (EnoughFor(survivors)) {
    Set("Degraded", true, "NodesLost", what + "; the job goes on with " + std::to_string(survivors) + " nodes");
    Event(true, "Degraded", what);
    return;
  }
  Fail("RetriesExhausted", what + (job_.spec.min_nodes ? "; fewer than elastic.minNodes are left"
                                                       : ", or set elastic.minNodes to go on without such nodes"));
}

void Pass::ReleaseGang() {
  // Every pod becomes one of an earlier attempt.
  ++next_.attempt;
  const Duration wait = Backoff(next_.attempt - 1);
  for (NodeStatus& node : next_.nodes) {
    if (node.phase == NodePhase::kSucceeded || node.phase == NodePhase::kLost) continue;
    node.phase = NodePhase::kPending;
    node.pod_ip.clear();
    node.retry_at = now_ + wait;
  }
  Set("NodesReady", false, "Unschedulable",
      trouble_ + "; all pods are released, and tried again later: add nodes, or ask for fewer GPUs");
  Event(true, "GangReleased", "not all nodes have found a machine in time: " + trouble_);
}

void Pass::CountNode(size_t rank, bool* release) {
  NodeStatus& node = next_.nodes[rank];
  if (node.phase == NodePhase::kSucceeded || node.phase == NodePhase::kLost) return;
  if (!Reachable(ClusterOf(node.site))) return;
  const auto found = pods_.find(node.name);
  if (found == pods_.end()) {
    if (node.phase != NodePhase::kPending) Again(rank, false, "its pod is gone");
    return;
  }
  const PodView& pod = found->second.view;
  if (pod.incarnation > Incarnation(node)) {
    // The status is older than the pod: it was seen too early, and the write fails, or other hands set it back.
    next_.attempt += pod.incarnation - Incarnation(node);
    return;
  }
  if (pod.incarnation < Incarnation(node) || pod.plan != next_.plan_hash) return;
  if (!pod.trouble.empty() && trouble_.empty()) trouble_ = node.name + ": " + pod.trouble;
  if (pod.fate == PodFate::kSucceeded) {
    node.phase = NodePhase::kSucceeded;
    node.last_exit_code = 0;
    Event(false, "NodeSucceeded", node.name + " has finished");
    return;
  }
  if (pod.fate == PodFate::kFailed || pod.fate == PodFate::kDisrupted || pod.deleting_until) {
    node.last_exit_code = pod.exit_code;
    // What ends while it is deleted was told to.
    const bool own = pod.fate == PodFate::kFailed && !pod.deleting_until;
    return Again(rank, own, own ? "exit code " + std::to_string(pod.exit_code.value_or(0)) : "evicted or deleted");
  }
  node.phase = pod.fate == PodFate::kReady ? NodePhase::kReady : NodePhase::kStarting;
  node.pod_ip = pod.ip;
  if (!pod.unschedulable || settings_.gang_timeout == Duration(0)) return;
  if (started() && EnoughFor(CountOf(NodePhase::kReady))) {
    Set("Degraded", true, "NodesWait", trouble_ + "; the job goes on with the others");
    return;
  }
  const Instant until = pod.created + settings_.gang_timeout;
  if (until <= now_) {
    *release = true;
  } else {
    RequeueAt(until);
  }
}

bool Pass::CountNodes() {
  bool release = false;
  for (size_t rank = 0; rank < next_.nodes.size() && !IsTerminal(next_.phase); ++rank) CountNode(rank, &release);
  if (IsTerminal(next_.phase)) return true;
  if (release) ReleaseGang();
  bool counted = next_.attempt != job_.status.attempt;
  for (size_t rank = 0; rank < next_.nodes.size(); ++rank) {
    const NodeStatus &now = next_.nodes[rank], &before = job_.status.nodes[rank];
    const bool ended = now.phase == NodePhase::kSucceeded || now.phase == NodePhase::kLost;
    counted |= now.retries != before.retries || now.disruptions != before.disruptions;
    counted |= ended && now.phase != before.phase;
  }
  if (counted) RequeueIn(kSoon);
  return counted;
}

size_t Pass::CountOf(NodePhase phase) const {
  return static_cast<size_t>(
      std::count_if(next_.nodes.begin(), next_.nodes.end(), [&](const NodeStatus& node) { return node.phase == phase; }));
}

bool Pass::EnoughFor(size_t nodes) const {
  return job_.spec.min_nodes && nodes >= std::min(static_cast<size_t>(*job_.spec.min_nodes), next_.nodes.size());
}

// --- control: objects

void Pass::Provision() {
  ProvisionServer();
  ProvisionRemote();
  ProvisionPods();
}

void Pass::ProvisionServer() {
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
  need(ServerSet(job_, config_, plan_, settings_));
  // That of a plan before has another number of members.
  if (TextAt(Find("StatefulSet", ServerName(job_)), {"metadata", "labels", kPlanLabel}) != plan_.hash) StopServer();
}

// It takes leave of its members and writes its last checkpoint; the claim stays.
void Pass::StopServer() {
  const Json& set = Find("StatefulSet", ServerName(job_));
  if (!set.is_null() && At(set, {"metadata", "deletionTimestamp"}).is_null()) Delete(set, "");
}

void Pass::ProvisionRemote() {
  for (const std::string& cluster : RemoteClusters()) {
    if (!Reachable(cluster)) continue;
    const auto owner = OwnerIn(cluster);
    if (!owner) {
      waits_for_objects_ = true;
      Create(Anchor(job_), cluster);
      continue;
    }
    if (Find("ConfigMap", PlanName(job_), cluster).is_null()) Create(PlanMap(job_, plan_, *owner), cluster);
    if (Find("Service", NodesName(job_), cluster).is_null()) {
      Create(NodesService(job_, *owner), cluster);
      if (!job_.spec.server.external) Create(KeySecret(job_, seen_.job_key, *owner), cluster);
    }
  }
}

void Pass::ProvisionPods() {
  for (size_t rank = 0; rank < next_.nodes.size(); ++rank) {
    const NodeStatus& node = next_.nodes[rank];
    const std::string cluster = ClusterOf(node.site);
    if (!Reachable(cluster) || node.phase == NodePhase::kSucceeded || node.phase == NodePhase::kLost) continue;
    if (const auto found = pods_.find(node.name); found != pods_.end()) {
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
    const std::string address = ServerAddress(job_, !cluster.empty(), Find("Service", PublicName(job_)), ServerPod());
    // A pod without a server would fail, and count.
    if (!plan_seen_ || !owner || !ServerReady() || address.empty()) {
      RequeueIn(kLookAgain);
      continue;
    }
    Create(WorkerPod(job_, config_, plan_, settings_, {rank, Incarnation(node), address}, *owner), cluster);
    RequeueIn(kSoon);
  }
  // Pods of a plan that had more nodes.
  for (const auto& [name, pod] : pods_) {
    const bool planned = std::any_of(next_.nodes.begin(), next_.nodes.end(),
                                     [&name = name](const NodeStatus& node) { return node.name == name; });
    if (!planned && !pod.view.deleting_until) Delete(*pod.object, pod.cluster);
  }
}

// --- control: phases

void Pass::Assess() {
  const size_t planned = plan_.nodes.size(), lost = CountOf(NodePhase::kLost);
  const size_t done = CountOf(NodePhase::kSucceeded), ready = done + CountOf(NodePhase::kReady);
  next_.ready_nodes = std::to_string(ready) + "/" + std::to_string(planned);
  for (const std::string& cluster : seen_.unreachable) {
    Set("Degraded", true, "SiteUnreachable",
        "site " + (cluster.empty() ? "of the job" : cluster) + " does not answer: its nodes are left as they are");
  }
  const Condition* degraded = next_.Find("Degraded");
  if (seen_.unreachable.empty() && degraded != nullptr && degraded->reason == "SiteUnreachable") {
    Set("Degraded", lost > 0, lost > 0 ? "NodesLost" : "SiteAnswers", lost > 0 ? "nodes are lost" : "all sites answer");
  }
  if (ready == planned && degraded != nullptr && degraded->reason == "NodesWait") {
    Set("Degraded", false, "Whole", "every node is ready");
  }
  if (done + lost == planned && planned > 0) {
    Set("Succeeded", false, "Completing", "all nodes have finished; the server writes its last checkpoint");
    To(Phase::kCompleting, "NodesFinished", std::to_string(done) + " of " + std::to_string(planned) + " nodes have finished");
    RequeueIn(kSoon);
    return;
  }
  const bool server = ServerReady();
  Set("ServerReady", server, server ? "Ready" : "NotReady",
      server ? "the server takes members"
             : "the server is not ready: see kubectl describe pod " + ServerName(job_) + "-0, and its log");
  const bool all = ready + lost == planned && planned > 0 && ready > 0;
  if (all) {
    Set("NodesReady", true, "Ready", std::to_string(ready) + " nodes are ready");
  } else {
    const Condition* before = next_.Find("NodesReady");
    const bool released = before != nullptr && before->reason == "Unschedulable" &&
                          CountOf(NodePhase::kStarting) + CountOf(NodePhase::kReady) == 0;
    if (!released) {
      Set("NodesReady", false, "Waiting",
          std::to_string(ready) + " of " + std::to_string(planned - lost) + " nodes are ready" +
              (trouble_.empty() ? "" : "; " + trouble_));
    }
  }
  if (all && server) {
    if (!started()) next_.start_time = now_;
    Set("Started", true, "Started", "every node is ready: the server starts the rounds");
    To(Phase::kRunning, "Running", std::to_string(ready) + " nodes train");
    return;
  }
  if (!started()) {
    const bool there = !waits_for_objects_;
    To(there ? Phase::kStarting : Phase::kProvisioning, there ? "Starting" : "Provisioning",
       there ? "waits for the server and for all nodes" : "objects are made");
    return;
  }
  To(Phase::kRestarting, server ? "NodesNotReady" : "ServerNotReady",
     server ? "waits for the nodes that are not ready" : "waits for the server");
  if (server || settings_.server_timeout == Duration(0)) return;
  const Instant until = next_.Find("ServerReady")->since + settings_.server_timeout;
  if (until > now_) return RequeueAt(until);
  Fail("ServerLost", "the server was not ready for " +
                         std::to_string(std::chrono::duration_cast<std::chrono::minutes>(settings_.server_timeout).count()) +
                         " minutes: see its log; its checkpoints are in the claim " + StorageName(job_));
}

void Pass::Complete() {
  StopServer();
  const Condition* completing = next_.Find("Succeeded");
  const Instant since = completing == nullptr ? now_ : completing->since;
  const bool late = since + kCompletion <= now_;
  if (completing == nullptr) Set("Succeeded", false, "Completing", "the server writes its last checkpoint");
  if (!ServerGone() && !late) return RequeueAt(since + kCompletion);
  const size_t lost = CountOf(NodePhase::kLost);
  std::string message = std::to_string(CountOf(NodePhase::kSucceeded)) + " nodes have finished";
  if (lost > 0) message += ", " + std::to_string(lost) + " were lost";
  if (!ServerGone()) message += "; the server did not end in time, so the last checkpoint may be missing";
  Set("Succeeded", true, "Finished", message);
  Finish(Phase::kSucceeded, "Finished", message);
}

void Pass::Suspend() {
  if (next_.phase == Phase::kSuspended) {
    for (const auto& [name, pod] : pods_) {
      const bool ended = pod.view.fate == PodFate::kSucceeded;
      if (!ended && !pod.view.deleting_until && Reachable(pod.cluster)) Delete(*pod.object, pod.cluster);
    }
    StopServer();
    return;
  }
  ++next_.attempt;
  for (NodeStatus& node : next_.nodes) {
    if (node.phase == NodePhase::kSucceeded || node.phase == NodePhase::kLost) continue;
    node.phase = NodePhase::kPending;
    node.pod_ip.clear();
    node.retry_at.reset();
  }
  const std::string message = "spec.runPolicy.suspend is true: pods are deleted, plan and checkpoints stay";
  Set("Suspended", true, "Suspended", message);
  Set("Started", false, "Suspended", message);
  Set("NodesReady", false, "Suspended", message);
  To(Phase::kSuspended, "Suspended", message);
  RequeueIn(kSoon);
}

void Pass::Resume() {
  Set("Suspended", false, "Resumed", "spec.runPolicy.suspend is false");
  const bool planned = !next_.plan_hash.empty();
  To(planned ? Phase::kProvisioning : Phase::kPending, "Resumed", "the job goes on from its checkpoint");
  RequeueIn(kSoon);
}

bool Pass::Overdue() {
  if (job_.spec.run_policy.suspend || IsTerminal(next_.phase) || next_.phase == Phase::kCompleting ||
      next_.phase == Phase::kSuspended) {
    return false;
  }
  const RunPolicy& policy = job_.spec.run_policy;
  if (const auto started_at = next_.TrueSince("Started"); started_at) {
    if (!policy.active_deadline) return false;
    if (*started_at + *policy.active_deadline <= now_) {
      Fail("DeadlineExceeded", "the job has run for runPolicy.activeDeadlineSeconds: raise it in a new job");
      return true;
    }
    RequeueAt(*started_at + *policy.active_deadline);
    return false;
  }
  if (!policy.start_deadline) return false;
  const Condition* suspended = next_.Find("Suspended");
  const Instant since = suspended == nullptr ? job_.created : std::max(job_.created, suspended->since);
  if (since + *policy.start_deadline <= now_) {
    const Condition* why = next_.Find("NodesReady");
    if (why == nullptr) why = next_.Find("Planned");
    Fail("StartDeadlineExceeded", "the job has not started within runPolicy.startDeadlineSeconds" +
                                      (why == nullptr ? std::string() : ": " + why->message));
    return true;
  }
  RequeueAt(since + *policy.start_deadline);
  return false;
}

// --- the end

void Pass::Finish(Phase phase, std::string_view reason, std::string message) {
  next_.completion_time = now_;
  To(phase, reason, std::move(message));
  RequeueIn(kSoon);
}

void Pass::Fail(std::string_view reason, std::string message) {
  Set("Failed", true, reason, message);
  Finish(Phase::kFailed, reason, std::move(message));
}

void Pass::CleanUp() {
  CleanPolicy policy = config_.clean_policy;
  if (policy == CleanPolicy::kAll && next_.phase == Phase::kFailed) policy = CleanPolicy::kRunning;
  bool clean = true;
  const auto remove = [&](const Json& object, const std::string& cluster) {
    clean = false;
    if (At(object, {"metadata", "deletionTimestamp"}).is_null() && Reachable(cluster)) Delete(object, cluster);
  };
  if (policy != CleanPolicy::kNone) {
    for (const auto& [name, pod] : pods_) {
      const bool runs = pod.view.fate < PodFate::kSucceeded;
      if (policy == CleanPolicy::kAll || runs) remove(*pod.object, pod.cluster);
    }
  }
  if (policy != CleanPolicy::kNone || next_.phase == Phase::kSucceeded) {
    for (const char* kind : {"StatefulSet", "Service"}) {
      const Json& object = Find(kind, std::string_view(kind) == "Service" ? PublicName(job_) : ServerName(job_));
      if (!object.is_null()) remove(object, "");
    }
  }
  if (clean) Set("CleanedUp", true, "CleanedUp", "by cleanPolicy " + std::string(NameOf(policy)));
  const auto ttl = job_.spec.run_policy.ttl_after_finished;
  if (!ttl || !next_.completion_time || !next_.IsTrue("CleanedUp")) return;
  if (*next_.completion_time + *ttl > now_) return RequeueAt(*next_.completion_time + *ttl);
  Delete(seen_.job, "");
}

bool Pass::HoldFinalizer() {
  if (job_.has_finalizer || RemoteClusters().empty()) return false;
  PatchFinalizers(Json::array({kFinalizer}));
  RequeueIn(kSoon);
  return true;
}

// Of ours alone: those of others have other field managers.
void Pass::PatchFinalizers(Json finalizers) {
  Json job = JobHead();
  job["metadata"]["finalizers"] = std::move(finalizers);
  out_.actions.push_back({Verb::kPatchJob, "", std::move(job), std::nullopt});
}

// Objects of the job's own cluster go with it, by their owner.
void Pass::LetGo() {
  if (!job_.has_finalizer) return;
  bool gone = true;
  for (const SiteObject& one : seen_.objects) {
    const bool anchor = !one.cluster.empty() && TextAt(one.object, {"metadata", "name"}) == AnchorName(job_);
    if (!anchor || TextAt(one.object, {"metadata", "labels", kUidLabel}) != job_.uid) continue;
    gone = false;
    Delete(one.object, one.cluster);
  }
  for (const std::string& cluster : RemoteClusters()) gone &= Reachable(cluster);
  const Instant until = *job_.deleted + settings_.finalizer_timeout;
  if (!gone && until > now_) return RequeueAt(std::min(until, now_ + kLookAgain));
  if (!gone) Event(true, "SiteUnreachable", "a site did not let its objects go in time: delete them there by hand");
  PatchFinalizers(Json::array());
}

// --- helpers

void Pass::To(Phase phase, std::string_view reason, std::string message) {
  const bool moves = next_.phase != phase;
  next_.phase = phase;
  next_.reason = reason;
  next_.message = message;
  if (moves) Event(phase == Phase::kFailed || phase == Phase::kRestarting, reason, message);
}

void Pass::Set(std::string_view type, bool value, std::string_view reason, std::string message) {
  (void)next_.Set(type, value ? ConditionStatus::kTrue : ConditionStatus::kFalse, reason, std::move(message), now_);
}

void Pass::Event(bool warning, std::string_view reason, const std::string& message) {
  out_.actions.push_back({Verb::kEvent, "",
                          {{"type", warning ? "Warning" : "Normal"}, {"reason", reason}, {"message", message}},
                          std::nullopt});
}

void Pass::Create(Json object, const std::string& cluster) {
  out_.actions.push_back({Verb::kCreate, cluster, std::move(object), std::nullopt});
}

void Pass::Delete(const Json& object, const std::string& cluster, std::optional<int64_t> grace) {
  Json which = {{"apiVersion", TextAt(object, {"apiVersion"})},
                {"kind", TextAt(object, {"kind"})},
                {"metadata",
                 {{"name", TextAt(object, {"metadata", "name"})},
                  {"namespace", job_.name_space},
                  {"uid", TextAt(object, {"metadata", "uid"})}}}};
  out_.actions.push_back({Verb::kDelete, cluster, std::move(which), grace});
  RequeueIn(kLookAgain);
}

void Pass::RequeueAt(Instant at) {
  const Duration wait = std::max<Duration>(at - now_, kSoon);
  if (!out_.requeue_after || wait < *out_.requeue_after) out_.requeue_after = wait;
}

Json Pass::JobHead() const {
  return {{"apiVersion", kApiVersion},
          {"kind", "TrainingJob"},
          {"metadata",
           {{"name", job_.name},
            {"namespace", job_.name_space},
            {"uid", job_.uid},
            {"resourceVersion", job_.resource_version}}}};
}

Decision Pass::Publish() {
  if (next_ == job_.status) {
    // Whatever else is said was said before.
    std::erase_if(out_.actions, [](const Action& action) { return action.verb == Verb::kEvent; });
    return std::move(out_);
  }
  Json job = JobHead();
  job["status"] = JobStatusJson(next_);
  out_.actions.insert(out_.actions.begin(), {Verb::kPatchStatus, "", std::move(job), std::nullopt});
  return std::move(out_);
}

const Json& Pass::Find(std::string_view kind, const std::string& name, const std::string& cluster) const {
  for (const SiteObject& one : seen_.objects) {
    if (one.cluster == cluster && TextAt(one.object, {"kind"}) == kind && TextAt(one.object, {"metadata", "name"}) == name &&
        TextAt(one.object, {"metadata", "labels", kUidLabel}) == job_.uid) {
      return one.object;
    }
  }
  return kNone;
}

const Json& Pass::ServerPod() const { return Find("Pod", ServerName(job_) + "-0"); }

bool Pass::ServerReady() const {
  if (job_.spec.server.external) return true;
  const Json& set = Find("StatefulSet", ServerName(job_));
  return NumberAt(set, {"status", "readyReplicas"}, 0) > 0 && At(set, {"metadata", "deletionTimestamp"}).is_null() &&
         TextAt(set, {"metadata", "labels", kPlanLabel}) == plan_.hash;
}

// Its last checkpoint is written: it has ended by itself, within its grace.
bool Pass::ServerGone() const {
  if (job_.spec.server.external) return true;
  return Find("StatefulSet", ServerName(job_)).is_null() && ServerPod().is_null();
}

std::string Pass::ClusterOf(std::string_view site) const {
  for (const Site& one : job_.spec.sites) {
    if (one.name == site) return one.kubeconfig_secret.empty() ? "" : one.name;
  }
  return "";
}

std::vector<std::string> Pass::RemoteClusters() const {
  std::vector<std::string> clusters;
  for (const Site& site : job_.spec.sites) {
    if (!site.kubeconfig_secret.empty()) clusters.push_back(site.name);
  }
  return clusters;
}

std::optional<Owner> Pass::OwnerIn(const std::string& cluster) const {
  if (cluster.empty()) return JobOwner(job_);
  const Json& anchor = Find("ConfigMap", AnchorName(job_), cluster);
  if (anchor.is_null()) return std::nullopt;
  return AnchorOwner(cluster, anchor);
}

}  // namespace longhaul::kube
