// --jobs FILE: several jobs for one process, each with a server's options.
//
//   checkpoint-every = 50        # before the first section: for all jobs
//   [job.resnet]
//   listen = "0.0.0.0:7700"
//   key = "resnet.key"
//   [job."bert large"]
//   ...
//
// An option of a section wins over the same one for all. Options of the whole process (ProcessOptions) and
// `job`, which the section's name says, are none of a job. A file is good as a whole or refused as a whole:
// nothing starts from half of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/program/flags.h"

namespace longhaul::server {

inline constexpr size_t kMaxJobs = 256;

struct JobFlags {
  std::string name;  // printable ASCII without quotes and backslashes; the job's name, too
  int line = 0;      // of its section
  ServerFlags flags;
  std::map<std::string, std::string> options;  // as texts, those that are not what they are by default
};

// The file's jobs, in its order. capacity_given: whether there is something to share. kInvalidArgument: file,
// line and what is wrong there, or which two jobs want the same port, directory or file.
Result<std::vector<JobFlags>> ReadJobs(const std::string& path, bool capacity_given);

// Gives jobs without a bound on memory equal parts of what the others' bounds leave of seven eighths of
// `available` bytes (0: unknown, nothing is given). kInvalidArgument: that is nothing.
Status DivideMemory(uint64_t available, std::vector<JobFlags>* jobs);

}  // namespace longhaul::server
