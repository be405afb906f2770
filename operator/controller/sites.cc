#include "operator/controller/sites.h"

#include <algorithm>
#include <utility>

#include "operator/controller/secrets.h"

namespace longhaul::kube {

Result<api::ClusterAccess> SiteAccess(const std::string& kubeconfig) {
  auto entry = api::ParseKubeconfig(kubeconfig);
  if (!entry.ok()) return entry.status();
  const bool files = !entry->ca_file.empty() || !entry->certificate_file.empty() ||
                     !entry->key_file.empty() || !entry->access.token_file.empty();
  if (files) {
    return Status(StatusCode::kInvalidArgument,
                  "it names files, which the operator does not read for a site: put their contents into it "
                  "(kubectl config view --flatten --minify --raw)");
  }
  if (const Status checked = api::CheckAccess(entry->access); !checked.ok()) return checked;
  return std::move(entry->access);
}

Sites::~Sites() {
  for (const auto& [key, site] : sites_) home_->Cancel(site.call);
}

Sites::View Sites::Look(const std::string& name_space, const std::string& secret, Instant now) {
  const std::string key = name_space + "/" + secret;
  auto found = sites_.find(key);
  if (found == sites_.end()) {
    if (sites_.size() >= kMostSites) {
      ++counters_.refused;
      return {nullptr, false, "the operator has " + std::to_string(kMostSites) + " sites open already"};
    }
    Site site;
    site.name_space = name_space;
    site.secret = secret;
    site.opened_at = now;
    found = sites_.emplace(key, std::move(site)).first;
  }
  Site& site = found->second;
  site.used_at = now;
  if (!site.trouble.empty()) return {nullptr, false, site.trouble};
  if (site.cluster != nullptr && site.cluster->answers()) return {site.cluster.get(), false, ""};
  if (now - site.opened_at < kOpening) return {nullptr, true, ""};
  std::string why =
      site.cluster == nullptr ? "Secret " + secret + " is not read yet" : site.cluster->trouble();
  if (why.empty()) why = "its API server has not said what is there";
  return {nullptr, false, std::move(why)};
}

void Sites::Run(Instant now) {
  for (auto one = sites_.begin(); one != sites_.end();) {
    Site& site = one->second;
    if (now - site.used_at >= kUnused && (site.cluster == nullptr || site.cluster->in_flight == 0)) {
      home_->Cancel(site.call);
      ++counters_.closed;
      one = sites_.erase(one);
      continue;
    }
    ++one;
    if (site.cluster != nullptr) site.cluster->Run(now);
    const bool well = site.trouble.empty() && site.cluster != nullptr && site.cluster->answers();
    if (site.call != 0 || now < site.read_at) continue;
    api::ApiRequest get;
    get.type = FindKind("Secret")->type;
    get.name_space = site.name_space;
    get.name = site.secret;
    get.time_limit = kWriteLimit;
    const Result<api::CallId> started = home_->Start(get);
    site.call = started.ok() ? *started : 0;
    site.read_at = now + (well ? kReadAgain : kReadSoon);
  }
}

bool Sites::TakeHome(const api::RestEvent& event, Instant now) {
  for (auto& [key, site] : sites_) {
    if (site.call == 0 || site.call != event.call) continue;
    site.call = 0;
    ++counters_.secrets_read;
    const bool had = site.cluster != nullptr;
    OnSecret(&site, event.result);
    if (!had && site.cluster != nullptr) site.opened_at = now;
    return true;
  }
  return false;
}

void Sites::OnSecret(Site* site, const api::ApiResult& result) {
  const std::string what = "Secret " + site->secret;
  if (!result.ok()) {
    // What answers goes on: the API server at home may be away for a moment.
    if (site->cluster != nullptr && site->cluster->answers()) return;
    site->trouble = what + " cannot be read: " + result.ToString() +
                    "; the operator needs the verb get on it (deploy/kubernetes/rbac/site.yaml)";
    return;
  }
  auto kubeconfig = SecretEntry(result.body, "kubeconfig");
  if (!kubeconfig.ok()) {
    site->trouble = what + ": " + kubeconfig.status().message();
    return;
  }
  if (site->cluster != nullptr && *kubeconfig == site->kubeconfig) return site->trouble.clear();
  if (site->cluster != nullptr && site->cluster->in_flight > 0) return;  // read again in a while
  Open(site, *std::move(kubeconfig));
}

void Sites::Open(Site* site, std::string kubeconfig) {
  site->cluster.reset();
  site->client.reset();
  const auto access = SiteAccess(kubeconfig);
  auto client = access.ok() ? api::RestClient::Make(*access, options_.rest, chance_.Fork(counters_.opened))
                            : access.status();
  if (!client.ok()) {
    site->trouble = "the kubeconfig of Secret " + site->secret + ": " + client.status().message();
    return;
  }
  ++counters_.opened;
  site->trouble.clear();
  site->kubeconfig = std::move(kubeconfig);
  site->client = *std::move(client);
  site->cluster = std::make_unique<Cluster>(site->client.get(),
                                            ClusterOptions{site->name_space, false, options_.informer},
                                            chance_.Fork(counters_.opened + 1));
}

void Sites::Poll(Instant now, const std::function<void(const std::string& site, api::RestEvent&)>& others) {
  for (auto& [key, site] : sites_) {
    if (site.client == nullptr) continue;
    site.client->Poll(Duration(0));
    while (auto event = site.client->Next()) {
      if (!site.cluster->Take(&*event, now)) others(key, *event);
    }
  }
}

void Sites::TakeChanges(const std::function<void(const std::string&)>& touched) {
  for (auto& [key, site] : sites_) {
    if (site.cluster != nullptr) site.cluster->TakeChanges(touched);
  }
}

Instant Sites::NextDue() const {
  Instant due = Instant::Infinite();
  for (const auto& [key, site] : sites_) {
    if (site.call == 0) due = std::min(due, site.read_at);
    if (site.cluster != nullptr) due = std::min(due, site.cluster->NextDue());
  }
  return due;
}

}  // namespace longhaul::kube
