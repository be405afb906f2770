// The controller of training jobs: what the API servers have -> Observed -> Reconcile -> its actions.
//
//   changes of objects, answers, times -> WorkQueue -> gather -> Reconcile -> action, action ... -> requeue
//                                                         |
//                                                         +- waits for an answer: comes again with it
//
// One thread, no call that waits: a job whose API server is slow has one of kMostInWork places meanwhile, of
// a site kMostOfSite, and the others go on. Nothing is remembered that a restart needs: what runs, ends or is
// missing is found in the objects.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/quantile.h"
#include "longhaul/log.h"
#include "operator/api/core/work_queue.h"
#include "operator/controller/cluster.h"
#include "operator/controller/event_desk.h"
#include "operator/controller/free_gpus.h"
#include "operator/controller/permission_desk.h"
#include "operator/controller/progress.h"
#include "operator/controller/script_desk.h"
#include "operator/controller/secrets.h"
#include "operator/controller/sites.h"

namespace longhaul::kube {

struct ControllerOptions {
  std::string name_space;  // of jobs; "": all
  // The Secret of the operator's key.
  std::string key_name_space = "longhaul-system", key_name = "longhaul-operator-key";
  // False: an admission policy of the API server has asked already.
  bool ask_permission = true;
  int progress_port = 9464;  // of servers' pods (--metrics); 0: progress is not read
  Settings settings;
  api::InformerOptions informer;
  api::WorkQueueOptions queue;
  SiteOptions sites;
  std::function<Instant()> wall;  // since the Unix epoch
  LogCallback log;
};

struct ControllerCounters {
  uint64_t reconciles = 0;
  uint64_t waits = 0;  // times that a job waited for an answer before it
  uint64_t created = 0;
  uint64_t deleted = 0;
  uint64_t statuses = 0;   // written
  uint64_t conflicts = 0;  // writes that another one was ahead of: the job is looked at again
  uint64_t failures = 0;   // of actions
  uint64_t taken_names = 0;
  uint64_t postponed = 0;                       // for want of a place
  Duration reconcile_p50{0}, reconcile_p99{0};  // of the last 1,024: from a job's turn to its decision
  Duration pass_p50{0}, pass_p99{0};            // and to the answer to its last action
};

// The last so many durations.
class RecentTimes {
 public:
  void Add(Duration time) {
    times_.push_back(time);
    if (times_.size() > 1024) times_.pop_front();
  }
  Duration Quantile(double q) const;

 private:
  std::deque<Duration> times_;
};

class Controller {
 public:
  // Jobs whose actions wait for answers, at once; and actions at one site. The client takes 256 requests.
  static constexpr size_t kMostInWork = 64;
  static constexpr size_t kMostOfSite = 8;

  // The client outlives this, and its events are offered to Take.
  Controller(api::RestClient* home, ControllerOptions options, Random chance);
  ~Controller();
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  // Begins what is due.
  void Run(Instant now);
  // False: it is of another request.
  bool Take(api::RestEvent* event, Instant now);
  // When Run has something to do, unless an event comes first.
  Instant NextDue(Instant now) const;

  // No job is begun any more; idle() when the last one is done.
  void Stop() { stopping_ = true; }
  bool idle() const { return work_.empty(); }
  // "" while it works; else what it waits for.
  std::string NotReady() const;

  ControllerCounters counters() const;
  const api::WorkQueue& queue() const { return queue_; }
  const Cluster& home() const { return home_; }
  const EventDesk& events() const { return events_; }
  const PermissionDesk& permissions() const { return permissions_; }
  const Sites& sites() const { return sites_; }
  const ProgressReader& progress() const { return progress_; }
  size_t in_work() const { return work_.size(); }

 private:
  // A job in work: what is left to do of its decision.
  struct Work {
    std::shared_ptr<const Json> job;
    std::deque<Action> actions;
    Action current;
    bool looks = false;  // at what has the name that `current` wants
    Cluster* cluster = nullptr;
    std::optional<Duration> requeue;
    bool again = false;  // sooner: an action has failed
    bool whole_script = false;
    Instant begun;
  };
  using Call = std::pair<std::string, api::CallId>;  // site ("": home) and request

  void Begin(const std::string& key, Instant now);
  void Wait(const std::string& key, Instant now);
  // nullopt: an answer is waited for.
  std::optional<Observed> Gather(const std::string& key, const Json& object, const TrainingJob& job,
                                 Instant now);
  bool GatherSites(const std::string& key, const TrainingJob& job, Instant now, Observed* seen);
  bool HasRoomForScript() const;  // in memory
  bool GatherScript(const std::string& key, const TrainingJob& job, Instant now, Observed* seen);
  bool GatherPlan(const std::string& key, const TrainingJob& job, Instant now, Observed* seen);
  void GatherProgress(const std::string& key, const TrainingJob& job, Instant now, Observed* seen);

  void Step(const std::string& key, Instant now);
  bool Send(const std::string& key, const api::ApiRequest& request, Work* work);
  bool OnAnswer(const Call& call, const api::ApiResult& result, Instant now);
  void OnCreated(const std::string& key, Work* work, const api::ApiResult& result, Instant now);
  void OnLooked(const std::string& key, Work* work, const api::ApiResult& result, Instant now);
  void OnWritten(const std::string& key, Work* work, const api::ApiResult& result, Instant now);
  void OnFailure(const std::string& key, Work* work, const api::ApiResult& result, Instant now);
  // `current` is not done: nor is what is left for its cluster. Other clusters get theirs.
  void GiveUp(const std::string& key, Work* work, Instant now);
  void Finish(const std::string& key, bool again, Instant now);
  void Add(const std::string& key, Instant now) { (void)queue_.Add(key, now); }
  void Say(const Json& job, std::string_view reason, const std::string& message, Instant now);
  void Log(LogLevel level, const std::string& text) const {
    if (options_.log) options_.log(level, text);
  }

  const ControllerOptions options_;
  Random chance_;
  api::RestClient* client_;
  Cluster home_;
  Sites sites_;
  OperatorKey key_;
  EventDesk events_;
  PermissionDesk permissions_;
  ScriptDesk scripts_;
  FreeSurvey survey_;
  std::set<std::string> wait_for_survey_;
  ProgressReader progress_;
  api::WorkQueue queue_;
  std::map<std::string, Work> work_;
  std::map<Call, std::string> calls_;  // -> the job that waits for it
  bool stopping_ = false;
  ControllerCounters counters_;
  RecentTimes reconcile_times_, pass_times_;
};

}  // namespace longhaul::kube
