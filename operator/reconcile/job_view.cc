#include "operator/reconcile/job_view.h"

#include <algorithm>
#include <utility>

#include "operator/reconcile/commands.h"

namespace longhaul::kube {
namespace {

const Json kNone;

// A node that ends so long after its server has waited for it in vain: half of kReconnectSeconds, since a
// server on a silent machine is seen to be gone up to 40 s after its members have missed it.
constexpr Duration kGone = std::chrono::seconds(kReconnectSeconds) / 2;

}  // namespace

JobView::JobView(const Settings& settings, const Observed& seen, Instant now, TrainingJob job)
    : settings_(settings), seen_(seen), now_(now), job_(std::move(job)) {
  for (const SiteObject& one : seen_.objects) {
    const Json& labels = At(one.object, {"metadata", "labels"});
    if (TextAt(one.object, {"kind"}) != "Pod" || TextAt(labels, {kUidLabel}) != job_.uid) continue;
    if (TextAt(labels, {kRoleLabel}) != "worker") continue;
    pods_[TextAt(one.object, {"metadata", "name"})] = {one.cluster, ReadPod(one.object), &one.object};
  }
}

const Json& JobView::Find(std::string_view kind, const std::string& name, const std::string& cluster) const {
  for (const SiteObject& one : seen_.objects) {
    if (one.cluster == cluster && TextAt(one.object, {"kind"}) == kind &&
        TextAt(one.object, {"metadata", "name"}) == name &&
        TextAt(one.object, {"metadata", "labels", kUidLabel}) == job_.uid) {
      return one.object;
    }
  }
  return kNone;
}

const Json& JobView::ServerPod() const { return Find("Pod", ServerName(job_) + "-0"); }

bool JobView::ServerReady() const {
  if (job_.spec.server.external) return true;
  const Json& set = Find("StatefulSet", ServerName(job_));
  return NumberAt(set, {"status", "readyReplicas"}, 0) > 0 &&
         At(set, {"metadata", "deletionTimestamp"}).is_null() && ServerCurrent();
}

bool JobView::ServerCurrent() const {
  const Json& labels = At(Find("StatefulSet", ServerName(job_)), {"metadata", "labels"});
  return TextAt(labels, {kPlanLabel}) == plan_.hash &&
         TextAt(labels, {kIncarnationLabel}) == std::to_string(job_.status.attempt);
}

// Its last checkpoint is written: it has ended by itself, within its grace.
bool JobView::ServerGone() const {
  if (job_.spec.server.external) return true;
  return Find("StatefulSet", ServerName(job_)).is_null() && ServerPod().is_null();
}

bool JobView::LostItsServer(const PodView& pod, bool joined) const {
  if (job_.spec.server.external) return false;
  if (job_.spec.server.storage && joined) {
    // It is waited for (kReconnectSeconds).
    const Condition* ready = job_.status.Find("ServerReady");
    return ready != nullptr && ready->status == ConditionStatus::kFalse && ready->since + kGone <= now_;
  }
  const PodView now = ReadPod(ServerPod());
  return ServerPod().is_null() || now.ends || now.created > pod.created;
}

bool JobView::HasLostAddress(const Json& pod, const std::string& cluster) const {
  const std::string had = TextAt(pod, {"metadata", "labels", kServerLabel});
  if (cluster.empty() || had.empty()) return false;
  const auto addresses = ServerAddresses(job_, true, Find("Service", PublicName(job_)), ServerPod());
  return !addresses.empty() && std::ranges::none_of(addresses, [&](const std::string& address) {
    return Fingerprint(address) == had;
  });
}

std::string JobView::ServerAddressFor(const std::string& cluster) const {
  const auto addresses =
      ServerAddresses(job_, !cluster.empty(), Find("Service", PublicName(job_)), ServerPod());
  return addresses.empty() ? "" : addresses[0];
}

std::string JobView::KeyTaken() const {
  return "Secret " + KeyName(job_) +
         " is there already and its key is not this job's: delete it (kubectl delete secret " +
         KeyName(job_) + " -n " + job_.name_space + "), and the operator makes it";
}

std::string JobView::ClusterOf(std::string_view site) const {
  for (const Site& one : job_.spec.sites) {
    if (one.name == site) return one.kubeconfig_secret.empty() ? "" : one.name;
  }
  return "";
}

std::vector<std::string> JobView::RemoteClusters() const {
  std::vector<std::string> clusters;
  for (const Site& site : job_.spec.sites) {
    if (!site.kubeconfig_secret.empty()) clusters.push_back(site.name);
  }
  return clusters;
}

std::optional<Owner> JobView::OwnerIn(const std::string& cluster) const {
  if (cluster.empty()) return JobOwner(job_);
  const Json& anchor = Find("ConfigMap", AnchorName(job_), cluster);
  if (anchor.is_null()) return std::nullopt;
  return AnchorOwner(cluster, anchor);
}

}  // namespace longhaul::kube
