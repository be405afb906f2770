#include "operator/reconcile/node_ledger.h"

#include <algorithm>

namespace longhaul::kube {

int64_t NodeLedger::Incarnation(const NodeStatus& node) const {
  return next_.attempt + node.retries + node.disruptions;
}

void NodeLedger::AwaitPod(NodeStatus* node) {
  node->phase = NodePhase::kPending;
  node->pod_ip.clear();
  node->joined = false;
}

void NodeLedger::Again(size_t rank, bool own_failure, const std::string& why) {
  NodeStatus& node = next_.nodes[rank];
  if (own_failure && node.retries >= config_.max_retries) return Lose(rank);
  ++(own_failure ? node.retries : node.disruptions);
  AwaitPod(&node);
  const Duration wait = Backoff(node.retries + node.disruptions);
  node.retry_at = now_ + wait;
  Event(true, own_failure ? "NodeFailed" : "NodeDisrupted",
        node.name + ": " + why + "; a new pod follows in " +
            std::to_string(std::chrono::duration_cast<std::chrono::seconds>(wait).count()) + " s" +
            (!own_failure   ? " (does not count as a retry)"
             : !has_config_ ? " (retry " + std::to_string(node.retries) + ")"
                            : " (retry " + std::to_string(node.retries) + " of " +
                                  std::to_string(config_.max_retries) + ")"));
}

void NodeLedger::Lose(size_t rank) {
  NodeStatus& node = next_.nodes[rank];
  node.phase = NodePhase::kLost;
  node.pod_ip.clear();
  const std::string what = node.name + " failed with exit code " +
                           std::to_string(node.last_exit_code.value_or(0)) + " after " +
                           std::to_string(node.retries) + " retries: see its log (kubectl logs " + node.name +
                           " -n " + job_.name_space + " -c trainer)";
  const size_t survivors = next_.nodes.size() - CountOf(NodePhase::kLost);
  if (EnoughFor(survivors)) {
    Set("Degraded", true, "NodesLost",
        what + "; the job goes on with " + std::to_string(survivors) + " nodes");
    Event(true, "Degraded", what);
    return;
  }
  Fail("RetriesExhausted",
       what + (job_.spec.min_nodes ? "; fewer than elastic.minNodes are left"
                                   : ", or set elastic.minNodes to go on without such nodes"));
}

void NodeLedger::GiveUp(NodeStatus* node, const std::string& why) {
  node->phase = NodePhase::kLost;
  node->pod_ip.clear();
  Event(true, "NodeLost", node->name + ": " + why);
}

size_t NodeLedger::Left() const {
  const size_t ended = CountOf(NodePhase::kSucceeded) + CountOf(NodePhase::kLost);
  return ended == 0 ? 0 : next_.nodes.size() - ended;
}

void NodeLedger::NextAttempt() {
  int64_t most = 0;
  for (const NodeStatus& node : next_.nodes) most = std::max<int64_t>(most, node.retries + node.disruptions);
  next_.attempt += most + 1;
}

void NodeLedger::ReleaseGang() {
  NextAttempt();
  const Duration wait = Backoff(next_.attempt - 1);
  for (NodeStatus& node : next_.nodes) {
    if (node.phase == NodePhase::kSucceeded || node.phase == NodePhase::kLost) continue;
    AwaitPod(&node);
    node.retry_at = now_ + wait;
  }
  Set("NodesReady", false, "Unschedulable",
      trouble_ + "; all pods are released, and tried again later: add nodes, or ask for fewer GPUs");
  Event(true, "GangReleased", "not all nodes have found a machine in time: " + trouble_);
}

void NodeLedger::CountNode(size_t rank, bool* release) {
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
    // The status is older than the pod: it was seen too early, and the write fails, or other hands set it
    // back.
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
  // Its containers end one after the other: it is not ready any more before it has failed.
  node.joined |= started() && pod.fate == PodFate::kReady;
  if (pod.fate == PodFate::kFailed || pod.fate == PodFate::kDisrupted || pod.deleting_until) {
    node.last_exit_code = pod.exit_code;
    const bool with_server = LostItsServer(pod, node.joined);
    // What ends while it is deleted was stopped.
    const bool own = pod.fate == PodFate::kFailed && !pod.deleting_until && !with_server;
    return Again(rank, own,
                 with_server       ? "its server's pod was replaced"
                 : !own            ? "evicted or deleted"
                 : pod.key_refused ? KeyTaken()
                                   : "exit code " + std::to_string(pod.exit_code.value_or(0)));
  }
  if (ServerReady() && HasLostAddress(*found->second.object, ClusterOf(node.site)))
    return Again(rank, false, "the server has moved to " + ServerAddressFor(ClusterOf(node.site)));
  node.phase = pod.fate == PodFate::kReady ? NodePhase::kReady : NodePhase::kStarting;
  node.pod_ip = pod.ip;
  if (!pod.unschedulable || settings_.gang_timeout == Duration(0)) return;
  if (started() && CountOf(NodePhase::kReady) > 0 &&
      EnoughFor(CountOf(NodePhase::kReady) + CountOf(NodePhase::kSucceeded))) {
    Degrade("NodesWait", trouble_ + "; the job goes on with the others");
    return;
  }
  const Instant until = pod.created + settings_.gang_timeout;
  if (until > now_) return RequeueAt(until);
  if (started() && EnoughFor(CountOf(NodePhase::kSucceeded)))
    return GiveUp(&node, pod.trouble + "; enough of the others have finished");
  *release = true;
}

bool NodeLedger::CountNodes() {
  bool release = false;
  for (size_t rank = 0; rank < next_.nodes.size() && !IsTerminal(next_.phase); ++rank)
    CountNode(rank, &release);
  if (IsTerminal(next_.phase)) return true;
  if (release && has_config_) ReleaseGang();
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

size_t NodeLedger::CountOf(NodePhase phase) const {
  return static_cast<size_t>(std::count_if(next_.nodes.begin(), next_.nodes.end(),
                                           [&](const NodeStatus& node) { return node.phase == phase; }));
}

bool NodeLedger::EnoughFor(size_t nodes) const {
  return job_.spec.min_nodes &&
         nodes >= std::min(static_cast<size_t>(*job_.spec.min_nodes), next_.nodes.size());
}

}  // namespace longhaul::kube
