// The other clusters that jobs name (spec.sites[].kubeconfigSecret): one client each, for all jobs of the
// namespace that name the same Secret.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "operator/controller/cluster.h"

namespace longhaul::kube {

struct SiteOptions {
  api::RestOptions rest;
  api::InformerOptions informer;
};

struct SiteCounters {
  uint64_t opened = 0;
  uint64_t closed = 0;   // no job names them any more
  uint64_t refused = 0;  // beyond kMostSites
  uint64_t secrets_read = 0;
};

class Sites {
 public:
  static constexpr size_t kMostSites = 64;  // open at once: some 200 KB each
  // A Secret is read again so often, and sooner while the site does not answer.
  static constexpr Duration kReadAgain = std::chrono::minutes(5);
  static constexpr Duration kReadSoon = std::chrono::seconds(10);
  // Until then a site that was just opened is waited for before it is called unreachable.
  static constexpr Duration kOpening = std::chrono::seconds(10);
  static constexpr Duration kUnused = std::chrono::minutes(30);  // a job looks at least each 10 (resync)

  // `home` has the Secrets; it outlives this.
  Sites(api::RestClient* home, SiteOptions options, Random chance)
      : home_(home), options_(std::move(options)), chance_(chance) {}
  ~Sites();
  Sites(const Sites&) = delete;
  Sites& operator=(const Sites&) = delete;

  struct View {
    Cluster* cluster = nullptr;  // null: not open
    bool opening = false;        // not known yet whether it answers
    std::string trouble;         // "": it answers
  };
  // Opens it where it is not open.
  View Look(const std::string& name_space, const std::string& secret, Instant now);

  void Run(Instant now);
  bool TakeHome(const api::RestEvent& event, Instant now);
  // Works off what has come from the sites, without waiting. others: takes what is no copy's.
  void Poll(Instant now, const std::function<void(const std::string& site, api::RestEvent&)>& others);
  void TakeChanges(const std::function<void(const std::string&)>& touched);
  Instant NextDue() const;

  size_t open() const { return sites_.size(); }
  const SiteCounters& counters() const { return counters_; }

 private:
  struct Site {
    std::string name_space, secret;
    std::string kubeconfig;  // of the client
    std::string trouble;     // of the Secret
    std::unique_ptr<api::RestClient> client;
    std::unique_ptr<Cluster> cluster;
    api::CallId call = 0;
    Instant read_at, opened_at, used_at;
  };
  void OnSecret(Site* site, const api::ApiResult& result);
  void Open(Site* site, std::string kubeconfig);

  api::RestClient* home_;
  const SiteOptions options_;
  Random chance_;
  std::map<std::string, Site> sites_;
  SiteCounters counters_;
};

// Of a Secret's entry `kubeconfig`. Nothing of this machine is read for it: a person who may write the Secret
// could else have the operator's own token sent to an address of theirs.
Result<api::ClusterAccess> SiteAccess(const std::string& kubeconfig);

}  // namespace longhaul::kube
