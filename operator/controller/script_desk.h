// The ConfigMaps that jobs take their script from (spec.script.configMapRef): read when a job plans, since
// they have no label that a copy could be kept by.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "operator/api/rest_client.h"
#include "operator/controller/kinds.h"

namespace longhaul::kube {

class ScriptDesk {
 public:
  static constexpr Duration kLasts = std::chrono::seconds(5);

  explicit ScriptDesk(api::RestClient* client) : client_(client) {}
  ~ScriptDesk();
  ScriptDesk(const ScriptDesk&) = delete;
  ScriptDesk& operator=(const ScriptDesk&) = delete;

  struct View {
    bool known = false;       // else it is asked for, and `job` is among those of Take
    std::optional<Json> map;  // none: there is none, or `trouble` says why it cannot be read
    std::string trouble;
  };
  View Look(const std::string& name_space, const std::string& name, const std::string& job, Instant now);
  // nullopt: not of this desk. Else the jobs that waited for it.
  std::optional<std::set<std::string>> Take(api::RestEvent* event, Instant now);

 private:
  struct Entry {
    api::CallId call = 0;
    std::set<std::string> jobs;
    View view;
    Instant until;
  };
  api::RestClient* client_;
  std::map<std::string, Entry> entries_;  // one a ConfigMap that was looked for in the last kLasts
};

}  // namespace longhaul::kube
