// May a job's requester use its profile? By SubjectAccessReview, remembered for a while.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "operator/api/core/permission_cache.h"
#include "operator/api/rest_client.h"
#include "operator/controller/kinds.h"

namespace longhaul::kube {

class PermissionDesk {
 public:
  struct Answer {
    Permission permission = Permission::kUnknown;
    bool asks = false;  // the API server is asked, and the job is among those of Take when it has answered
    std::string message;
  };

  explicit PermissionDesk(api::RestClient* client) : client_(client) {}
  ~PermissionDesk();
  PermissionDesk(const PermissionDesk&) = delete;
  PermissionDesk& operator=(const PermissionDesk&) = delete;

  // kUnknown without `asks`: the last question had no answer. stamped: HasProof.
  Answer Ask(const TrainingJob& job, const std::string& key, bool stamped, Instant now);
  // nullopt: not of this desk. Else the jobs that waited for it.
  std::optional<std::set<std::string>> Take(const api::RestEvent& event, Instant now);

  const api::PermissionCacheCounters& counters() const { return cache_.counters(); }
  uint64_t reviews() const { return reviews_; }

 private:
  struct Open {
    api::AccessQuestion question;
    std::string text;
    std::set<std::string> jobs;
  };
  api::RestClient* client_;
  api::PermissionCache cache_;
  std::map<std::string, api::CallId> asked_;  // a question's text -> its call
  std::map<api::CallId, Open> open_;          // one a question
  // Questions that had no answer, and why: said once each, and then asked again.
  std::map<std::string, std::string> failed_;
  uint64_t reviews_ = 0;
};

api::AccessQuestion QuestionOf(const TrainingJob& job);

}  // namespace longhaul::kube
