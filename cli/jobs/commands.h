// `longhaul submit`, `jobs`, `logs`, `cancel`: training jobs on a cluster, for people without kubectl.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "cli/jobs/cluster.h"
#include "cli/jobs/job_file.h"

namespace longhaul::cli {

struct SubmitOptions {
  ClusterOptions cluster;
  std::string file;  // a TrainingJob; empty: `job`
  JobFlags job;
  std::string script_file;  // of `job`
  bool wait = false;
  Duration look_every = std::chrono::seconds(1);
  // Of an API server that does not answer while the job runs, which that does not disturb.
  Duration patience = std::chrono::minutes(5);
};
// Prints what was created; with wait, how it goes, until its end. 0: created; with wait: Succeeded.
int RunSubmit(SubmitOptions options);

struct JobsOptions {
  ClusterOptions cluster;
  std::string name;  // empty: all
  bool all_namespaces = false;
  bool json = false;
};
int RunJobs(const JobsOptions& options);

struct LogsOptions {
  ClusterOptions cluster;
  std::string name;
  uint32_t node = 0;
  std::string container = "trainer";
  bool follow = false;
  Duration look_every = std::chrono::seconds(1);  // while the container has not started
};
int RunLogs(const LogsOptions& options);

struct CancelOptions {
  ClusterOptions cluster;
  std::string name;
};
// Deletes the job that is there now, and none of the same name that comes after it.
int RunCancel(const CancelOptions& options);

}  // namespace longhaul::cli
