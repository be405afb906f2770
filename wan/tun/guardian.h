// A small child process that cleans up when its parent dies, however it dies: it waits for the end of a pipe
// whose other end only the parent holds, so even SIGKILL leaves no namespace behind.
#pragma once

#include <sys/types.h>

#include <string>

#include "longhaul/status.h"
#include "wan/tun/run_state.h"
#include "wan/tun/unique_fd.h"

namespace longhaul::wan {

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
  Guardian(pid_t pid, UniqueFd pipe) : pid_(pid), pipe_(std::move(pipe)) {}

  pid_t pid_ = 0;
  UniqueFd pipe_;
};

}  // namespace longhaul::wan
