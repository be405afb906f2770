#include "operator/reconcile/reconcile.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "operator/reconcile/pass.h"

namespace longhaul::kube {
namespace {

// From the request to end to the server's last word: 30 s of grace, and its machine's delay. A checkpoint
// that takes longer is not waited for; the ones before are there.
constexpr Duration kCompletion = std::chrono::minutes(2);
// A site's silence until an elastic job whose other nodes have finished ends without it: longer than an API
// server needs to start again, and than the server waits for a member.
constexpr Duration kSiteGone = std::chrono::minutes(1);
// Of a job that trains nothing changes but its rounds: they are asked for again.
constexpr Duration kRounds = std::chrono::seconds(30);
// A server ends with its last member, a moment before the pods are seen to have ended.
constexpr Duration kLastWord = std::chrono::seconds(5);
constexpr Instant WholeSeconds(Instant now) {
  return Instant::FromNanoseconds(now.nanoseconds() / 1'000'000'000 * 1'000'000'000);
}

const Json kNone;

}  // namespace

Duration Backoff(int64_t n) {
  return std::chrono::seconds(n > 6 ? 60 : std::min<int64_t>(60, int64_t{1} << (n - 1)));
}

Decision Reconcile(const Settings& settings, const Observed& observed, Instant now) {
  auto job = ParseTrainingJob(observed.job);
  if (!job.ok()) return {};
  return Pass(settings, observed, WholeSeconds(now), std::move(*job)).Run();
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
  if (job_.spec.run_policy.suspend &&
      (next_.nodes.empty() || Left() > 0 || CountOf(NodePhase::kSucceeded) == 0)) {
    // What has ended by itself does not begin again.
    if (next_.phase != Phase::kSuspended && CountNodes()) return Publish();
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
    auto profile = seen_.profile
                       ? ParseTrainingProfile(*seen_.profile)
                       : Status(StatusCode::kNotFound, "there is none in this namespace: create it");
    if (!profile.ok()) return DoWithoutProfile(name + ": " + profile.status().message());
    config_ = std::move(profile->config);
  }
  if (job_.spec.server.expose == Expose::kHostNetwork && !job_.spec.server.external &&
      (job_.spec.node || At(config_.node_template, {"spec", "hostNetwork"}) != true)) {
    const std::string why =
        "spec.server.expose: HostNetwork needs a profile whose nodeTemplate.spec.hostNetwork is true: "
        "choose NodePort "
        "or LoadBalancer, or ask an administrator for such a profile";
    if (StatusHasPlan()) return DoWithoutProfile("TrainingProfile " + job_.spec.profile + ": " + why);
    Fail("BadTemplate", why);
    return false;
  }
  return true;
}

// What trains goes on, and is counted; what is made takes the profile.
bool Pass::DoWithoutProfile(const std::string& why) {
  const char* reason = seen_.profile ? "InvalidProfile" : "ProfileNotFound";
  if (StatusHasPlan()) {
    has_config_ = false;
    config_.max_retries = std::numeric_limits<int>::max();  // its next pod waits for the profile
    // An end takes no profile.
    if (next_.phase != Phase::kCompleting) Degrade(reason, why + "; no pod is made until it is there again");
    return true;
  }
  Set("Planned", false, reason, why + "; or delete the job, and name another profile in a new one");
  if (!Overdue()) RequeueIn(kLookAgain);
  return false;
}

bool Pass::Authorize() {
  // Once allowed, a job runs to its end.
  if (next_.IsTrue("Authorized")) return true;
  const std::string person = job_.requester.empty() ? "the requester" : job_.requester;
  const std::string what =
      job_.spec.profile.empty() ? "all trainingprofiles" : "trainingprofiles/" + job_.spec.profile;
  switch (seen_.permission) {
    case Permission::kAllowed:
      next_.requester = job_.requester;
      Set("Authorized", true, "Allowed", person + " may use " + what);
      return true;
    case Permission::kDenied: {
      // With a message it was not asked: it is not even known that this is the requester.
      if (seen_.permission_message.empty()) next_.requester = job_.requester;
      const std::string why =
          seen_.permission_message.empty()
              ? person + " may not use " + what + ": ask an administrator for the RBAC verb \"use\" on it"
              : seen_.permission_message;
      Set("Authorized", false, "Denied", why);
      Fail("Unauthorized", why);
      return false;
    }
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
    Fail("InvalidSpec", where + " is longer than " + std::to_string(kMostScriptBytes) +
                            " bytes: load what is long from "
                            "the data or the image");
    return std::nullopt;
  }
  return found.get<std::string>();
}

bool Pass::Adopt(const JobPlan& plan) {
  NextAttempt();
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
  const std::string message = std::to_string(job_.spec.total_gpus) + " GPUs on " +
                              std::to_string(plan.nodes.size()) + " nodes: " + counts;
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
  if (!StatusHasPlan() || (has_config_ && WantsAnotherPlan())) {
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
  RequeueIn(kSoon);
  return CreatePlan(JobOwner(job_));
}

// --- control: phases

void Pass::GiveSitesUp() {
  if (seen_.unreachable.empty() || !EnoughFor(CountOf(NodePhase::kSucceeded))) return;
  const auto over = [](const NodeStatus& node) {
    return node.phase == NodePhase::kSucceeded || node.phase == NodePhase::kLost;
  };
  for (const NodeStatus& node : next_.nodes) {
    if (!over(node) && Reachable(ClusterOf(node.site))) return;
  }
  const Instant until = next_.Find("SitesAnswer")->since + kSiteGone;
  if (until > now_) return RequeueAt(until);
  for (NodeStatus& node : next_.nodes) {
    if (!over(node))
      GiveUp(&node, "site " + node.site + " does not answer, and all other nodes have finished");
  }
}

// What was not found again in this pass is over, but for nodes that are lost.
void Pass::EndDegraded() {
  const Condition* degraded = next_.Find("Degraded");
  if (degrades_ || degraded == nullptr || degraded->reason == "NodesLost") return;
  const size_t lost = CountOf(NodePhase::kLost);
  Set("Degraded", lost > 0, lost > 0 ? "NodesLost" : "Whole",
      lost > 0 ? std::to_string(lost) + " nodes are lost" : "nothing keeps the job from going on");
}

void Pass::Assess() {
  for (const std::string& cluster : seen_.unreachable) {
    const auto why = seen_.why_unreachable.find(cluster);
    Degrade("SiteUnreachable", "site " + (cluster.empty() ? "of the job" : cluster) +
                                   " does not answer: its nodes are left as they are" +
                                   (why == seen_.why_unreachable.end() ? "" : " (" + why->second + ")"));
  }
  if (!seen_.unreachable.empty() || next_.Find("SitesAnswer") != nullptr) {
    Set("SitesAnswer", seen_.unreachable.empty(), seen_.unreachable.empty() ? "AllAnswer" : "SiteUnreachable",
        std::to_string(seen_.unreachable.size()) + " of the job's clusters do not answer");
  }
  GiveSitesUp();
  const size_t planned = plan_.nodes.size(), lost = CountOf(NodePhase::kLost);
  const size_t done = CountOf(NodePhase::kSucceeded), ready = done + CountOf(NodePhase::kReady);
  next_.ready_nodes = std::to_string(ready) + "/" + std::to_string(planned);
  EndDegraded();
  if (done + lost == planned && planned > 0) {
    Set("Succeeded", false, "Completing", "all nodes have finished; the server writes its last checkpoint");
    To(Phase::kCompleting, "NodesFinished",
       std::to_string(done) + " of " + std::to_string(planned) + " nodes have finished");
    RequeueIn(kSoon);
    return;
  }
  const bool server = ServerReady() && !ServerWaitsForEnded();
  const bool taken = !server && ReadPod(ServerPod()).key_refused;
  const Condition* said = next_.Find("ServerReady");
  if (taken && (said == nullptr || said->reason != "NameTaken")) Event(true, "NameTaken", KeyTaken());
  const auto& external = job_.spec.server.external;
  Set("ServerReady", server,
      external ? "External"
      : server ? "Ready"
      : taken  ? "NameTaken"
               : "NotReady",
      external ? external->host + " is not this operator's, and not asked: see the nodes' logs"
      : server ? "the server takes members"
      : taken  ? KeyTaken()
               : "the server is not ready: see kubectl describe pod " + ServerName(job_) + "-0 -n " +
                    job_.name_space + ", and its log");
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
    RequeueIn(kRounds);
    return;
  }
  if (!started()) {
    const bool there = !waits_for_objects_;
    To(there ? Phase::kStarting : Phase::kProvisioning, there ? "Starting" : "Provisioning",
       there ? "waits for the server and for all nodes" : "objects are made");
    return;
  }
  const Instant gone = next_.Find("ServerReady")->since;
  if (!server && next_.phase == Phase::kRunning && gone + kLastWord > now_)
    return RequeueAt(gone + kLastWord);
  To(Phase::kRestarting, server ? "NodesNotReady" : "ServerNotReady",
     server ? "waits for the nodes that are not ready" : "waits for the server");
  if (server || settings_.server_timeout == Duration(0) || !has_config_) return;
  // Since the profile is back, it may be made again.
  const Condition* degraded = next_.Find("Degraded");
  const Instant until =
      std::max(gone, degraded == nullptr ? gone : degraded->since) + settings_.server_timeout;
  if (until > now_) return RequeueAt(until);
  Fail(
      "ServerLost",
      "the server was not ready for " +
          std::to_string(std::chrono::duration_cast<std::chrono::minutes>(settings_.server_timeout).count()) +
          " minutes: see its log; its checkpoints are in the claim " + StorageName(job_));
}

void Pass::Complete() {
  StopServer();
  EndDegraded();
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
  EndDegraded();
  if (next_.phase == Phase::kSuspended) {
    for (const auto& [name, pod] : pods_) {
      const bool ended = pod.view.fate == PodFate::kSucceeded;
      if (!ended && !pod.view.deleting_until && Reachable(pod.cluster)) Delete(*pod.object, pod.cluster);
    }
    StopServer();
    return;
  }
  NextAttempt();
  for (NodeStatus& node : next_.nodes) {
    if (node.phase == NodePhase::kSucceeded || node.phase == NodePhase::kLost) continue;
    AwaitPod(&node);
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

void Pass::CleanUp() {
  CleanPolicy policy = config_.clean_policy;
  if (policy == CleanPolicy::kAll && next_.phase == Phase::kFailed) policy = CleanPolicy::kRunning;
  // The time that was given is over: nothing trains on.
  if (policy == CleanPolicy::kNone && next_.reason.ends_with("DeadlineExceeded"))
    policy = CleanPolicy::kRunning;
  bool clean = policy == CleanPolicy::kNone || seen_.unreachable.empty();
  if (!clean) RequeueIn(kLookAgain);
  const auto remove = [&](const Json& object, const std::string& cluster) {
    clean = false;
    if (At(object, {"metadata", "deletionTimestamp"}).is_null() && Reachable(cluster))
      Delete(object, cluster);
  };
  if (policy != CleanPolicy::kNone) {
    for (const auto& [name, pod] : pods_) {
      const bool runs = pod.view.fate < PodFate::kSucceeded;
      if (policy == CleanPolicy::kAll || runs) remove(*pod.object, pod.cluster);
    }
  }
  if (policy != CleanPolicy::kNone || next_.phase == Phase::kSucceeded) {
    for (const char* kind : {"StatefulSet", "Service"}) {
      const Json& object =
          Find(kind, std::string_view(kind) == "Service" ? PublicName(job_) : ServerName(job_));
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
  if (!gone)
    Event(true, "SiteUnreachable", "a site did not let its objects go in time: delete them there by hand");
  PatchFinalizers(Json::array());
}

}  // namespace longhaul::kube
