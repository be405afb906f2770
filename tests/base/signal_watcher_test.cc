// How a process takes its signals, tried in a child of one thread.
#include "base/process/signal_watcher.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

namespace longhaul::process {
namespace {

// How a child ends that does `what`, whose result is its exit code.
template <typename What>
int EndOf(What what) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    ::_exit(what());
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

bool IsPending(int signal) {
  sigset_t set;
  return sigpending(&set) == 0 && sigismember(&set, signal) == 1;
}

template <typename Condition>
void WaitUntil(Condition condition) {
  while (!condition()) std::this_thread::yield();
}

// The watcher's thread has taken it, and is done with it when the watcher is gone.
void SendAndWaitUntilTaken(int signal) {
  ::kill(::getpid(), signal);
  WaitUntil([signal] { return !IsPending(signal); });
}

// How often leave was called, after two signals.
int LeavesAfter(int first, int second) {
  std::signal(SIGHUP, SIG_DFL);  // as without nohup
  std::atomic<int> leaves = 0;
  {
    SignalWatcher watcher;
    watcher.Guard([&leaves](int) { ++leaves; });
    ::kill(::getpid(), first);
    WaitUntil([&watcher] { return watcher.interrupted(); });
    SendAndWaitUntilTaken(second);
  }
  return leaves;
}

// A terminal that closes may say so twice, by the kernel and by the shell.
TEST(SignalWatcher, ASecondHangUpLeavesTimeToLeave) {
  EXPECT_EQ(EndOf([] { return LeavesAfter(SIGHUP, SIGHUP); }), 1);
  EXPECT_EQ(EndOf([] { return LeavesAfter(SIGTERM, SIGHUP); }), 1);
}

TEST(SignalWatcher, ASecondSignalOfAnotherKindEndsAtOnce) {
  EXPECT_EQ(EndOf([] { return LeavesAfter(SIGHUP, SIGTERM); }), 128 + SIGTERM);
}

TEST(SignalWatcher, WithoutAnythingToLeaveTheFirstOneEndsAtOnce) {
  EXPECT_EQ(EndOf([] {
              std::signal(SIGHUP, SIG_DFL);
              const SignalWatcher watcher;
              ::kill(::getpid(), SIGHUP);
              WaitUntil([] { return false; });
              return 0;
            }),
            128 + SIGHUP);
}

}  // namespace
}  // namespace longhaul::process
