// A child process whose standard output is read line by line. It ends with this process.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/files.h"
#include "longhaul/status.h"
#include "longhaul/units.h"

namespace longhaul::cli {

class ChildProcess {
 public:
  // Lines longer than this are cut: a child cannot make us grow.
  static constexpr size_t kMaxLineBytes = 1u << 20;

  // Starts argv[0] with the arguments, in a process group of its own. `before_exec` runs in the child (to
  // enter a namespace). Standard error is shared with ours unless `stderr_file` is given. Errors: as
  // process::Spawn, also when the program cannot be executed or `before_exec` is not 0.
  static Result<ChildProcess> Start(std::string name, const std::vector<std::string>& argv,
                                    const std::function<int()>& before_exec, const std::string& stderr_file);

  ChildProcess(ChildProcess&& other) noexcept { *this = std::move(other); }
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  // Ends the child if it still runs: SIGTERM, then SIGKILL two seconds later.
  ~ChildProcess();

  const std::string& name() const { return name_; }
  pid_t pid() const { return pid_; }
  // For poll(); -1 at the end of its output.
  int output() const { return output_.get(); }
  // Reads what is there and calls `on_line` for each complete line, and for what is left at the end.
  void ReadLines(const std::function<void(const std::string&)>& on_line);
  // Reaps without waiting; true when it has ended.
  bool Poll();
  bool running() const { return pid_ > 0 && !ended_; }
  // 0..255, or 128 + signal. REQUIRES: !running().
  int exit_code() const { return exit_code_; }
  void Signal(int signal) const;
  // Waits at most `limit` for its end; true when it has ended.
  bool WaitFor(Duration limit);

 private:
  ChildProcess() = default;

  std::string name_;
  pid_t pid_ = -1;
  FileDescriptor output_;
  bool ended_ = false;
  int exit_code_ = -1;
  std::string partial_;
};

}  // namespace longhaul::cli
