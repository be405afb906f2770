// What the machines of the cluster have free (allocation.capacity Discovered), from one look at all machines
// and pods: page by page, of which only sums are kept.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "operator/api/rest_client.h"
#include "operator/controller/kinds.h"

namespace longhaul::kube {

// Machines and what pods on them ask for.
class Machines {
 public:
  void AddNode(const Json& node);
  void AddPod(const Json& pod);

  // Of those that the nodes' template may run on: schedulable, with its labels, its taints tolerated. A
  // machine counts for the site whose labels it has, and for no site where the job has none.
  std::vector<FreeGpus> Free(const TrainingJobSpec& spec, const NodeConfig& config) const;
  size_t size() const { return machines_.size(); }

 private:
  struct Machine {
    std::map<std::string, std::string> labels;
    Json taints;
    std::map<std::string, int64_t> free;  // of extended resources, which have a "/" in their name
    bool schedulable = true;
  };
  std::map<std::string, Machine> machines_;
};

// Looks when it is asked to, at most each kLasts.
class FreeSurvey {
 public:
  static constexpr Duration kLasts = std::chrono::seconds(10);
  // Of pods as they are, with the fields of their managers 10 to 20 KB each; fewer where they are larger.
  static constexpr uint32_t kPage = 50;

  explicit FreeSurvey(api::RestClient* client) : client_(client) {}
  ~FreeSurvey() { client_->Cancel(call_); }
  FreeSurvey(const FreeSurvey&) = delete;
  FreeSurvey& operator=(const FreeSurvey&) = delete;

  // Null while it looks; empty where it could not, and trouble() says why.
  const Machines* Look(Instant now);
  // nullopt: not of this survey. True: it is at its end.
  std::optional<bool> Take(const api::RestEvent& event, Instant now);
  const std::string& trouble() const { return trouble_; }
  uint64_t surveys() const { return surveys_; }

 private:
  void Ask();

  api::RestClient* client_;
  Machines machines_, next_;
  std::optional<Instant> at_;
  bool pods_ = false;
  std::string token_;      // of the next page
  uint32_t page_ = kPage;  // objects in it
  api::CallId call_ = 0;
  std::string trouble_;
  uint64_t surveys_ = 0;
};

}  // namespace longhaul::kube
