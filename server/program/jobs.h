// Several jobs in one process (decision 0031): a whole server for each, with a thread, a port, keys, a
// directory and budgets of its own. They have in common the process, its output, and the link of --capacity,
// of which each job has a part by its weight.
//
//   Start   every job at once, in a thread for each start: none waits for another's checkpoint
//   Wait    until the last one has ended; what ends gives its memory, its port and its part of the link back
//
// A job that cannot start, fails or ends touches no other.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/process/output.h"
#include "health/health_port.h"
#include "longhaul/server.h"
#include "server/program/jobs_file.h"
#include "server/program/progress.h"

namespace longhaul::server {

class Jobs {
 public:
  struct Options {
    Bandwidth capacity = {};  // of the link; zero: estimated by each job
    std::string progress = "text";
    LogCallback log = {};
    process::Output* output = nullptr;
    health::HealthPort* health = nullptr;  // may be null
  };
  // Starts all of `jobs`.
  Jobs(std::vector<JobFlags> jobs, const Options& options);
  // REQUIRES: Wait has returned.
  ~Jobs();
  Jobs(const Jobs&) = delete;
  Jobs& operator=(const Jobs&) = delete;

  // Every server stops in order, all at the same time; one that still starts, when it has. Any thread.
  void Stop();
  // Until all have ended. The highest exit code; a line for each job says its own.
  int Wait();
  // Key files and lists of `jobs`, which a file of now has, for those that run: each all of it or nothing.
  // Any thread.
  void Reload(const std::vector<JobFlags>& jobs);
  // Answers while one job's loop does; ready while all that have not ended are. For as long as this lives.
  health::HealthSource Source();

 private:
  struct Job;

  void Serve(Job& job);
  void SayWhereItListens(Job& job, const Server& server) const;
  // Whether the job has ended.
  bool Look(Job& job);
  void End(Job& job, int code, const Status& outcome);
  // One that serves and answered last time, or whose turn it is. Null: none.
  std::shared_ptr<Server> Ask(Job& job, bool* turn);
  health::LoopState LookAtLoops();
  bool Collect(health::MetricPage* page);

  const Options options_;
  std::vector<std::unique_ptr<Job>> jobs_;
  size_t turn_ = 0;  // the health port's thread
};

}  // namespace longhaul::server
