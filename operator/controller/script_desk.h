// Scripts as a whole, read when a plan is written: of the ConfigMaps that jobs name
// (spec.script.configMapRef), which have no label that a copy could be kept by; of jobs and plans, of which
// copies keep a mark.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "operator/api/rest_client.h"
#include "operator/controller/kinds.h"

namespace longhaul::kube {

class ScriptDesk {
 public:
  static constexpr Duration kLasts = std::chrono::seconds(5);
  // At once. 256 KiB of script, and as much of an annotation of kubectl's: 8 MB with what curl holds.
  static constexpr size_t kMost = 8;

  explicit ScriptDesk(api::RestClient* client) : client_(client) {}
  ~ScriptDesk();
  ScriptDesk(const ScriptDesk&) = delete;
  ScriptDesk& operator=(const ScriptDesk&) = delete;

  struct View {
    // Else it is asked for, and `job` is among those of Take, or there is no place: look again in a while.
    bool known = false;
    std::optional<Json> object;  // none: there is none, or `trouble` says why it cannot be read
    std::string trouble;
  };
  // kind: "ConfigMap", "TrainingJob". An answer is kept until all that asked for it have looked.
  View Look(std::string_view kind, const std::string& name_space, const std::string& name,
            const std::string& job, Instant now);
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
  std::map<std::string, Entry> entries_;  // one an object
};

}  // namespace longhaul::kube
