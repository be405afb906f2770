#include "wan/tun/guardian.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdlib>

#include "wan/tun/os_error.h"

namespace longhaul::wan {
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
  if (got == 0) (void)RemoveRun(directory, state);  // the parent is dead and nobody can be told
  _exit(0);
}

}  // namespace

Result<Guardian> Guardian::Start(const std::string& state_directory, const RunState& state) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return OsError("pipe", errno);
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) return OsError("fork", errno);
  if (pid == 0) Guard(read_end.get(), state_directory, state);
  return Guardian(pid, std::move(write_end));
}

void Guardian::Dismiss() {
  if (!pipe_.ok()) return;
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
