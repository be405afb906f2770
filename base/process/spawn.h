// Child processes of a daemon.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "longhaul/status.h"

namespace longhaul::process {

// "<step>: <strerror>". EPERM and EACCES become kPermissionDenied, a missing device, file or program
// kUnavailable, EEXIST kAlreadyExists, anything else kInternal.
Status OsError(std::string_view step, int error);

// Child processes, optionally inside a network namespace.
struct SpawnOptions {
  // Enter this network namespace before exec; -1 stays in the caller's.
  int network_namespace = -1;
  // SIGTERM for the child when the *thread* that spawned it ends; so spawn from a thread that lives on.
  bool die_with_parent = false;
  // The child's standard output and standard error go to these descriptors; -1 inherits.
  int output = -1;
  int errors = -1;
  // NAME=VALUE, all of its environment; empty: the caller's.
  std::vector<std::string> environment = {};
  // A process group of its own: a Ctrl-C at the terminal reaches the parent alone.
  bool own_group = false;
  // Called in the child before exec; other than 0 ends it there. Only async-signal-safe calls.
  std::function<int()> before_exec = {};
};

// Starts argv[0] (searched in PATH). A program that cannot be executed is reported here, not as exit code.
// REQUIRES: argv is not empty.
Result<pid_t> Spawn(const std::vector<std::string>& argv, const SpawnOptions& options = {});

// This process becomes that program, argv[0], with its own environment. Returns only if it cannot, and why.
// REQUIRES: argv is not empty; no thread of ours runs.
Status Become(const std::vector<std::string>& argv);

// The path of the program with this name that is installed beside the one that runs.
std::string Beside(std::string_view program);

// The exit code, or 128 + the signal that ended it. kNotFound when it is not a child of this process.
Result<int> WaitFor(pid_t pid);

}  // namespace longhaul::process
