#include "cli/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace longhaul::cli {
namespace {

[[noreturn]] void RunChild(const std::vector<std::string>& argv, const std::function<int()>& before_exec,
                           int output, int error_output, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(127);  // the parent died before the line above
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::setpgid(0, 0);  // a Ctrl-C at the terminal reaches the parent alone, who ends us in order
  ::dup2(output, STDOUT_FILENO);
  if (error_output >= 0) ::dup2(error_output, STDERR_FILENO);
  if (before_exec && before_exec() != 0) ::_exit(127);
  std::vector<char*> pointers;
  for (const std::string& argument : argv) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  ::execv(pointers[0], pointers.data());
  const char* reason = std::strerror(errno);
  (void)!::write(STDERR_FILENO, argv[0].data(), argv[0].size());
  (void)!::write(STDERR_FILENO, ": ", 2);
  (void)!::write(STDERR_FILENO, reason, std::strlen(reason));
  (void)!::write(STDERR_FILENO, "\n", 1);
  ::_exit(127);
}

}  // namespace

Result<ChildProcess> ChildProcess::Start(std::string name, const std::vector<std::string>& argv,
                                         const std::function<int()>& before_exec,
                                         const std::string& stderr_file) {
  int pipe_ends[2];
  if (::pipe2(pipe_ends, O_CLOEXEC) != 0) {
    return Status(StatusCode::kInternal, "pipe for " + name + ": " + std::strerror(errno));
  }
  int error_output = -1;
  if (!stderr_file.empty()) {
    error_output = ::open(stderr_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (error_output < 0) {
      const std::string reason = std::strerror(errno);
      ::close(pipe_ends[0]);
      ::close(pipe_ends[1]);
      return Status(StatusCode::kInternal, "cannot write " + stderr_file + ": " + reason);
    }
  }
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) RunChild(argv, before_exec, pipe_ends[1], error_output, parent);
  const int fork_error = errno;
  ::close(pipe_ends[1]);
  if (error_output >= 0) ::close(error_output);
  if (pid < 0) {
    ::close(pipe_ends[0]);
    return Status(StatusCode::kInternal, "fork for " + name + ": " + std::strerror(fork_error));
  }
  ::fcntl(pipe_ends[0], F_SETFL, O_NONBLOCK);
  ChildProcess child;
  child.name_ = std::move(name);
  child.pid_ = pid;
  child.output_ = pipe_ends[0];
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
  if (output_ >= 0) ::close(output_);
}

void ChildProcess::ReadLines(const std::function<void(const std::string&)>& on_line) {
  if (output_ < 0) return;
  char buffer[16384];
  for (;;) {
    const ssize_t n = ::read(output_, buffer, sizeof buffer);
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
      ::close(output_);
      output_ = -1;
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
    while (output_ >= 0 && ::read(output_, sink, sizeof sink) > 0) {
    }
    ::poll(nullptr, 0, static_cast<int>(kStep.count()));
  }
  return true;
}

}  // namespace longhaul::cli
