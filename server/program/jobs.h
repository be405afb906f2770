// Several jobs in one process (decision 0031): a whole server for each, with a thread, a port, keys, a
// directory and budgets of its own. They have in common the process, its output, and the link of --capacity,
// of which each job has a part by its weight.
//
//   Start   every job at once, in a thread for each start: none waits for another's checkpoint
//   Reload  starts those that are new in the file, and ends in order those that have left it
//   Wait    until the last one has ended; what ends gives its memory, its port and its part of the link back
//
// A job that cannot start, fails or ends touches no other.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/process/output.h"
#include "health/health_port.h"
#include "longhaul/server.h"
#include "server/grants/link_share.h"
#include "server/program/jobs_file.h"
#include "server/program/progress.h"

namespace longhaul::server {

class Jobs {
 public:
  struct Options {
    Bandwidth capacity = {};  // of the link; zero: estimated by each job
    uint64_t memory = 0;      // bytes that the machine had for all jobs at the start; 0: unknown
    std::string progress = "text";
    LogCallback log = {};
    process::Output* output = nullptr;
    health::HealthPort* health = nullptr;  // may be null
  };
  // Starts all of `jobs`, each of which has its bound on memory (DivideMemory).
  Jobs(std::vector<JobFlags> jobs, const Options& options);
  // REQUIRES: Wait has returned.
  ~Jobs();
  Jobs(const Jobs&) = delete;
  Jobs& operator=(const Jobs&) = delete;

  // Every server stops in order, all at the same time; one that still starts, when it has. Any thread.
  void Stop();
  // All jobs, as Daemon::BeginHandOver, or none when one cannot be. Any thread.
  Status HandOver();
  // Until all have ended. The highest exit code; a line for each job says its own when it ends.
  int Wait();
  // `now` is what the file has now. Jobs that have left it stop in order; those that are new in it start
  // when these have ended, since they may have their ports, or after 30 s. Those that run read key
  // files and lists again, each all of it or nothing; what else has changed of them is named in the log and
  // left alone. One that has ended stays so while it is in the file. Any one thread at a time. Errors:
  // kInvalidArgument (no memory is left for a new one), kFailedPrecondition (Stop, or all have ended):
  // nothing has changed.
  Status Reload(std::vector<JobFlags> now);
  // Answers while one job's loop does; ready while all that have not ended are. For as long as this lives.
  health::HealthSource Source();

 private:
  struct Job;
  using List = std::vector<std::shared_ptr<Job>>;

  List All() const;
  // REQUIRES: mutex_ is held, or there is one thread.
  void Add(JobFlags flags);
  // Looks for ends, and starts what waits for them. Whether any job is left.
  bool Turn();
  void Reread(Job& job, const JobFlags& now) const;
  void Serve(Job& job);
  void SayWhereItListens(Job& job, const Server& server) const;
  void Say(LogLevel level, const Job& job, const std::string& text) const;
  // Ends the job when its server has.
  void Look(Job& job);
  void End(Job& job, int code, const Status& outcome);
  // One that serves and answered last time, or whose turn it is. Null: none.
  std::shared_ptr<Server> Ask(Job& job, bool* turn);
  health::LoopState LookAtLoops();
  bool Collect(health::MetricPage* page);

  const Options options_;
  const std::shared_ptr<LinkShare::Total> total_;
  int worst_ = 0;    // exit code so far; Wait's thread
  size_t turn_ = 0;  // the health port's thread

  mutable std::mutex mutex_;  // guards what follows
  bool over_ = false;         // Stop, or all have ended: nothing starts any more
  List jobs_;
  std::vector<JobFlags> pending_;  // new ones, until those that leave have ended
  std::chrono::steady_clock::time_point pending_until_;
};

}  // namespace longhaul::server
