#include "wan/tun/process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>

#include "base/check.h"
#include "base/files.h"

namespace longhaul::wan {

Status OsError(std::string_view step, int error) {
  StatusCode code = StatusCode::kInternal;
  if (error == EPERM || error == EACCES) code = StatusCode::kPermissionDenied;
  if (error == ENOENT || error == ENODEV || error == ENXIO) code = StatusCode::kUnavailable;
  if (error == EEXIST) code = StatusCode::kAlreadyExists;
  return {code, std::string(step) + ": " + std::generic_category().message(error)};
}

namespace {

constexpr size_t kMaxCapturedBytes = 1 << 20;

// Between fork and exec only async-signal-safe calls; `failure` carries {step, errno} back.
enum Step : int { kSetns, kOutput, kBeforeExec, kExec };

[[noreturn]] void Child(char* const* argv, const SpawnOptions& options, pid_t parent, int failure) {
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
  execvp(argv[0], argv);
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
  std::vector<char*> pointers;
  for (const std::string& word : argv) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return OsError("pipe", errno);
  const FileDescriptor read_end(ends[0]);
  FileDescriptor write_end(ends[1]);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return OsError("fork", errno);
  if (pid == 0) Child(pointers.data(), options, parent, write_end.get());
  write_end.Reset();
  std::array<int, 2> report{};
  ssize_t got = 0;
  do got = read(read_end.get(), report.data(), sizeof report);
  while (got < 0 && errno == EINTR);
  if (got != static_cast<ssize_t>(sizeof report)) return pid;  // closed by exec
  waitpid(pid, nullptr, 0);
  return DescribeFailure(report, argv[0]);
}

Result<int> WaitFor(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR)
      return Status(StatusCode::kNotFound, "process " + std::to_string(pid) + " is not a child");
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

Result<CommandOutput> RunAndCapture(const std::vector<std::string>& argv, SpawnOptions options) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return OsError("pipe", errno);
  const FileDescriptor read_end(ends[0]);
  FileDescriptor write_end(ends[1]);
  options.output = options.errors = write_end.get();
  const Result<pid_t> pid = Spawn(argv, options);
  write_end.Reset();
  if (!pid.ok()) return pid.status();
  CommandOutput output;
  char buffer[4096];
  for (;;) {
    const ssize_t got = read(read_end.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    if (output.text.size() < kMaxCapturedBytes) output.text.append(buffer, static_cast<size_t>(got));
  }
  const Result<int> code = WaitFor(*pid);
  if (!code.ok()) return code.status();
  output.exit_code = *code;
  return output;
}

uint64_t ProcessStartTime(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  // The name in parentheses may hold spaces and parentheses: count fields after the last one.
  const size_t close = text.rfind(')');
  if (close == std::string::npos) return 0;
  std::istringstream fields(text.substr(close + 1));
  std::string field;
  for (int number = 3; number < 22 && fields >> field; ++number) {
    if (number == 3 && field == "Z") return 0;  // a zombie owns nothing any more
  }
  uint64_t start = 0;
  fields >> start;
  return start;
}

namespace {

constexpr char kDismissed = 'd';

// Only the pipe stays open, as descriptor 3: anything else of the parent (a TUN device, a listening socket,
// a terminal) must not outlive it because of us.
void KeepOnly(int pipe) {
  dup2(pipe, 3);
  close_range(4, ~0u, 0);
  const int null = open("/dev/null", O_RDWR);
  for (int fd = 0; fd < 3; ++fd) dup2(null, fd);
  if (null > 3) close(null);
}

[[noreturn]] void Guard(int pipe, const std::string& directory, const RunState& state) {
  setsid();
  prctl(PR_SET_NAME, "longhaul-wan-gd");
  for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) signal(s, SIG_IGN);
  KeepOnly(pipe);
  char word = 0;
  ssize_t got = 0;
  do got = read(3, &word, 1);
  while (got < 0 && errno == EINTR);
  if (got == 0) (void)RemoveRun(directory, state);  // the parent is dead: an error has no reader
  _exit(0);
}

}  // namespace

Result<Guardian> Guardian::Start(const std::string& state_directory, const RunState& state) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return OsError("pipe", errno);
  const FileDescriptor read_end(ends[0]);
  FileDescriptor write_end(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) return OsError("fork", errno);
  if (pid == 0) Guard(read_end.get(), state_directory, state);
  return Guardian(pid, std::move(write_end));
}

void Guardian::Dismiss() {
  if (!pipe_.valid()) return;
  // The guardian may have been killed, and a write to it must not kill us.
  sigset_t broken_pipe, before;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, &before);
  const bool gone = write(pipe_.get(), &kDismissed, 1) < 0 && errno == EPIPE;
  const timespec now{};
  if (gone) sigtimedwait(&broken_pipe, nullptr, &now);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pipe_.Reset();
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace longhaul::wan
