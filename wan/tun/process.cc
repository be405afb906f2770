#include "wan/tun/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/files.h"

namespace longhaul::wan {

namespace {

constexpr size_t kMaxCapturedBytes = 1 << 20;

}  // namespace

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
