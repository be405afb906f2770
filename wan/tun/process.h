// A refused system call as a Status that names the step.
#pragma once

#include <sys/types.h>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "longhaul/status.h"
#include "wan/tun/run_state.h"

namespace longhaul::wan {

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
  // A process group of its own: a Ctrl-C at the terminal reaches the parent alone.
  bool own_group = false;
  // Called in the child before exec; other than 0 ends it there. Only async-signal-safe calls.
  std::function<int()> before_exec = {};
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

// A small child process that cleans up when its parent dies, however it dies: it waits for the end of a pipe
// whose other end only the parent holds, so even SIGKILL leaves no namespace behind.
class Guardian {
 public:
  // Forks the guardian of `state`. It keeps no descriptor of the parent open, leads a session of its own and
  // ignores SIGINT, SIGTERM and SIGHUP.
  static Result<Guardian> Start(const std::string& state_directory, const RunState& state);

  Guardian(Guardian&&) noexcept = default;
  Guardian& operator=(Guardian&&) noexcept = default;
  ~Guardian() { Dismiss(); }

  pid_t pid() const { return pid_; }
  // The parent has cleaned up itself: the guardian ends and removes nothing. Idempotent.
  void Dismiss();

 private:
  Guardian(pid_t pid, FileDescriptor pipe) : pid_(pid), pipe_(std::move(pipe)) {}

  pid_t pid_ = 0;
  FileDescriptor pipe_;
};

}  // namespace longhaul::wan
