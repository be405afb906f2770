// One API server as the operator sees it: copies of all objects of jobs, and what belongs to which job.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "operator/api/loops.h"
#include "operator/controller/kinds.h"

namespace longhaul::kube {

struct ClusterOptions {
  std::string name_space;  // "": all
  bool home = true;        // has jobs and profiles; else a site: pods, their plan and their service
  api::InformerOptions informer;
};

class Cluster {
 public:
  // The client outlives this.
  Cluster(api::RestClient* client, const ClusterOptions& options, Random chance);

  void Run(Instant now);
  // False: it is of another request.
  bool Take(api::RestEvent* event, Instant now);
  Instant NextDue() const;

  // All copies are whole.
  bool synced() const;
  // Whole, and watches do not fail again and again.
  bool answers() const { return synced() && failed_in_a_row_ < kFailures; }
  // In words; "" where there is none.
  std::string trouble() const;

  // Says each job ("namespace/name") that something has changed for.
  void TakeChanges(const std::function<void(const std::string&)>& touched);
  std::shared_ptr<const Json> Job(const std::string& key) const;
  std::shared_ptr<const Json> Profile(const std::string& key) const;
  // With `cluster` as the name of this one.
  void AddObjects(const std::string& job, const std::string& cluster, std::vector<SiteObject>* objects) const;
  size_t jobs() const;
  size_t objects() const;
  api::InformerCounters counters() const;  // of all copies

  api::RestClient* client() const { return client_; }
  size_t in_flight = 0;  // actions that wait for an answer

 private:
  // A watch that is cut is begun anew, and says nothing until its first event, a minute at most. So many
  // failures in a row are a server that is away: 0.8 + 1.6 s and their attempts.
  static constexpr uint64_t kFailures = 3;

  struct Copy {
    const Kind* kind = nullptr;
    std::unique_ptr<api::InformerLoop> loop;
  };
  Copy* Find(std::string_view kind);
  const Copy* Find(std::string_view kind) const;
  void Note(const Copy& copy, size_t index, const api::Change& change,
            const std::function<void(const std::string&)>& touched);

  api::RestClient* client_;
  std::vector<Copy> copies_;
  // Job -> (index of the copy, key in it).
  std::map<std::string, std::set<std::pair<size_t, std::string>>> of_job_;
  std::vector<uint64_t> failures_seen_;
  uint64_t failed_in_a_row_ = 0;
};

}  // namespace longhaul::kube
