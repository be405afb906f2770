// Child processes, optionally inside a network namespace.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "longhaul/status.h"

namespace longhaul::wan {

struct SpawnOptions {
  // Enter this network namespace before exec; -1 stays in the caller's.
  int network_namespace = -1;
  // SIGTERM for the child when the *thread* that spawned it ends; so spawn from a thread that lives on.
  bool die_with_parent = false;
  // Both streams of the child go to this descriptor; -1 inherits.
  int output = -1;
};

// Starts argv[0] (searched in PATH). A program that cannot be executed is reported here, not as exit code.
// REQUIRES: argv is not empty.
Result<pid_t> Spawn(const std::vector<std::string>& argv, const SpawnOptions& options = {});

// The exit code, or 128 + the signal that ended it. kNotFound when it is not a child of this process.
Result<int> WaitFor(pid_t pid);

struct CommandOutput {
  int exit_code = 0;
  std::string text;  // stdout and stderr together, at most 1 MB
};
Result<CommandOutput> RunAndCapture(const std::vector<std::string>& argv, SpawnOptions options = {});

// When a process began, in clock ticks since boot: with the pid it names a process for good, since pids are
// used again. 0 when there is no such process.
uint64_t ProcessStartTime(pid_t pid);

}  // namespace longhaul::wan
