#include "cli/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/process/spawn.h"

namespace longhaul::cli {

Result<ChildProcess> ChildProcess::Start(std::string name, const std::vector<std::string>& argv,
                                         const std::function<int()>& before_exec,
                                         const std::string& stderr_file) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return process::OsError("pipe for " + name, errno);
  ChildProcess child;
  child.output_.Reset(ends[0]);
  const FileDescriptor write_end(ends[1]);
  FileDescriptor errors;
  if (!stderr_file.empty()) {
    errors.Reset(::open(stderr_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!errors.valid()) return process::OsError("cannot write " + stderr_file, errno);
  }
  const Result<pid_t> pid = process::Spawn(argv, {.die_with_parent = true,
                                                  .output = write_end.get(),
                                                  .errors = errors.get(),
                                                  .own_group = true,
                                                  .before_exec = before_exec});
  if (!pid.ok()) return pid.status();
  ::fcntl(child.output_.get(), F_SETFL, O_NONBLOCK);
  child.name_ = std::move(name);
  child.pid_ = *pid;
  return child;
}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this == &other) return *this;
  std::swap(name_, other.name_);
  std::swap(pid_, other.pid_);
  std::swap(output_, other.output_);
  std::swap(ended_, other.ended_);
  std::swap(exit_code_, other.exit_code_);
  std::swap(partial_, other.partial_);
  return *this;
}

ChildProcess::~ChildProcess() {
  if (running()) {
    Signal(SIGTERM);
    if (!WaitFor(std::chrono::seconds(2))) {
      Signal(SIGKILL);
      WaitFor(std::chrono::seconds(2));
    }
  }
}

void ChildProcess::ReadLines(const std::function<void(const std::string&)>& on_line) {
  if (!output_.valid()) return;
  char buffer[16384];
  for (;;) {
    const ssize_t n = ::read(output_.get(), buffer, sizeof buffer);
    if (n > 0) {
      partial_.append(buffer, static_cast<size_t>(n));
      size_t start = 0;
      for (size_t end; (end = partial_.find('\n', start)) != std::string::npos; start = end + 1) {
        on_line(partial_.substr(start, end - start));
      }
      partial_.erase(0, start);
      if (partial_.size() > kMaxLineBytes) partial_.clear();
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) {
      output_.Reset();
      if (!partial_.empty()) on_line(std::exchange(partial_, {}));
    }
    return;
  }
}

bool ChildProcess::Poll() {
  if (pid_ <= 0) return true;
  if (ended_) return true;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return false;
  ended_ = true;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return true;
}

void ChildProcess::Signal(int signal) const {
  if (running()) ::kill(pid_, signal);
}

bool ChildProcess::WaitFor(Duration limit) {
  constexpr auto kStep = std::chrono::milliseconds(10);
  for (Duration waited{0}; !Poll(); waited += kStep) {
    if (waited >= limit) return false;
    // Draining keeps a child that writes its last words from blocking on a full pipe.
    char sink[4096];
    while (output_.valid() && ::read(output_.get(), sink, sizeof sink) > 0) {
    }
    ::poll(nullptr, 0, static_cast<int>(kStep.count()));
  }
  return true;
}

}  // namespace longhaul::cli
