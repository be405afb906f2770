// Child processes that capture, and one that cleans up.
#pragma once

#include <sys/types.h>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/process/spawn.h"
#include "longhaul/status.h"
#include "wan/tun/run_state.h"

namespace longhaul::wan {

using process::OsError;
using process::Spawn;
using process::SpawnOptions;
using process::WaitFor;

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
