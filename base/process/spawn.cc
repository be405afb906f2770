#include "base/process/spawn.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/check.h"
#include "base/files.h"

namespace longhaul::process {

Status OsError(std::string_view step, int error) {
  StatusCode code = StatusCode::kInternal;
  if (error == EPERM || error == EACCES) code = StatusCode::kPermissionDenied;
  if (error == ENOENT || error == ENODEV || error == ENXIO) code = StatusCode::kUnavailable;
  if (error == EEXIST) code = StatusCode::kAlreadyExists;
  return {code, std::string(step) + ": " + std::generic_category().message(error)};
}

namespace {

// Between fork and exec only async-signal-safe calls; `failure` carries {step, errno} back.
enum Step : int { kSetns, kOutput, kBeforeExec, kExec };

// The pointers that exec wants, to words that must stay.
std::vector<char*> Pointers(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

[[noreturn]] void Child(char* const* argv, char* const* environment, const SpawnOptions& options,
                        pid_t parent, int failure) {
  const auto fail = [failure](Step step) {
    const int report[2] = {step, errno};
    (void)!write(failure, report, sizeof report);
    _exit(127);
  };
  if (options.die_with_parent) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(127);  // it died before the request
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);  // the parent may block what the program expects
  if (options.network_namespace >= 0 && setns(options.network_namespace, CLONE_NEWNET) != 0) fail(kSetns);
  if (options.own_group) setpgid(0, 0);
  if (options.output >= 0 && dup2(options.output, STDOUT_FILENO) < 0) fail(kOutput);
  if (options.errors >= 0 && dup2(options.errors, STDERR_FILENO) < 0) fail(kOutput);
  if (options.before_exec && options.before_exec() != 0) fail(kBeforeExec);
  execvpe(argv[0], argv, environment);
  fail(kExec);
  _exit(127);
}

Status DescribeFailure(const std::array<int, 2>& report, const std::string& program) {
  if (report[0] == kSetns) return OsError("entering the site's network namespace (setns)", report[1]);
  if (report[0] == kOutput) return OsError("redirecting the output of " + program, report[1]);
  if (report[0] == kBeforeExec) return OsError("preparing " + program, report[1]);
  return OsError("executing " + program, report[1]);
}

}  // namespace

Result<pid_t> Spawn(const std::vector<std::string>& argv, const SpawnOptions& options) {
  LH_CHECK(!argv.empty());
  const std::vector<char*> words = Pointers(argv), variables = Pointers(options.environment);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return OsError("pipe", errno);
  const FileDescriptor read_end(ends[0]);
  FileDescriptor write_end(ends[1]);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return OsError("fork", errno);
  if (pid == 0)
    Child(words.data(), options.environment.empty() ? environ : variables.data(), options, parent,
          write_end.get());
  write_end.Reset();
  std::array<int, 2> report{};
  ssize_t got = 0;
  do got = read(read_end.get(), report.data(), sizeof report);
  while (got < 0 && errno == EINTR);
  if (got != static_cast<ssize_t>(sizeof report)) return pid;  // closed by exec
  waitpid(pid, nullptr, 0);
  return DescribeFailure(report, argv[0]);
}

Status Become(const std::vector<std::string>& argv) {
  LH_CHECK(!argv.empty());
  execv(argv[0].c_str(), Pointers(argv).data());
  return OsError("executing " + argv[0], errno);
}

std::string Beside(std::string_view program) {
  std::error_code ignored;
  return (std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path() / program).string();
}

Result<int> WaitFor(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR)
      return Status(StatusCode::kNotFound, "process " + std::to_string(pid) + " is not a child");
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace longhaul::process
