// What a confined process may do, each tried in a child: Confine holds to the end of a process.
#include "base/process/confinement.h"

#include <fcntl.h>
#include <netdb.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

namespace longhaul::process {
namespace {

constexpr int kNoSeccomp = 77;

// How a child ends that is confined and does `what`, whose result is its exit code.
template <typename What>
int EndOf(Confinement role, What what, bool takes_connections = false) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(Confine(role, takes_connections).ok() ? what() : kNoSeccomp);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

class ConfinementTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const int end = EndOf(Confinement::kServer, [] { return 0; });
    if (WIFEXITED(end) && WEXITSTATUS(end) == kNoSeccomp) GTEST_SKIP() << "no seccomp here";
  }
  template <typename What>
  static void ExpectKilled(What what) {
    for (const Confinement role : {Confinement::kServer, Confinement::kWorker}) {
      const int end = EndOf(role, what);
      EXPECT_TRUE(WIFSIGNALED(end) && WTERMSIG(end) == SIGSYS) << end;
    }
  }
  template <typename What>
  static void ExpectCode(Confinement role, int code, What what) {
    const int end = EndOf(role, what);
    EXPECT_TRUE(WIFEXITED(end) && WEXITSTATUS(end) == code) << end << ", expected " << code;
  }
};

int SocketError(int domain, int type) { return ::socket(domain, type | SOCK_CLOEXEC, 0) >= 0 ? 0 : errno; }

TEST_F(ConfinementTest, StartsNoProgramAndNoProcess) {
  ExpectKilled([] { return ::execl("/bin/true", "true", nullptr); });
  ExpectKilled([] { return static_cast<int>(::fork()); });
}

TEST_F(ConfinementTest, LooksIntoNoOtherProcess) {
  ExpectKilled([] { return static_cast<int>(::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr)); });
}

TEST_F(ConfinementTest, HoldsForThreadsThatRunAlready) {
  std::atomic<bool> confined{false};
  const pid_t child = ::fork();
  if (child == 0) {
    std::thread before([&] {
      while (!confined) std::this_thread::yield();
      ::execl("/bin/true", "true", nullptr);
    });
    if (!Confine(Confinement::kServer).ok()) ::_exit(1);
    confined = true;
    before.join();
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS) << status;
}

TEST_F(ConfinementTest, OpensDatagramSocketsAndNoOthers) {
  ExpectCode(Confinement::kServer, 0, [] { return SocketError(AF_INET, SOCK_DGRAM); });
  ExpectCode(Confinement::kServer, 0, [] { return SocketError(AF_INET6, SOCK_DGRAM | SOCK_NONBLOCK); });
  ExpectCode(Confinement::kServer, ENOSYS, [] { return SocketError(AF_INET, SOCK_STREAM); });
  ExpectCode(Confinement::kServer, ENOSYS, [] { return SocketError(AF_INET, SOCK_RAW); });
  ExpectCode(Confinement::kServer, ENOSYS, [] { return SocketError(AF_UNIX, SOCK_STREAM); });
  ExpectCode(Confinement::kWorker, ENOSYS, [] { return SocketError(AF_PACKET, SOCK_RAW); });
}

TEST_F(ConfinementTest, TakesConnectionsOfAPortThatListensWhenItHasOne) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  ASSERT_EQ(::listen(listener, 1), 0);  // on a free port
  const auto take = [listener] {
    const int plain = ::accept(listener, nullptr, nullptr) >= 0 ? 0 : errno;
    const int with_flags = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC) >= 0 ? 0 : errno;
    return plain == with_flags ? plain : 1;
  };
  for (const Confinement role : {Confinement::kServer, Confinement::kWorker}) {
    ExpectCode(role, ENOSYS, take);
    const int end = EndOf(role, take, /*takes_connections=*/true);
    EXPECT_TRUE(WIFEXITED(end) && WEXITSTATUS(end) == EAGAIN) << end;
  }
  const int end = EndOf(
      Confinement::kServer, [] { return SocketError(AF_INET, SOCK_STREAM); }, true);
  EXPECT_TRUE(WIFEXITED(end) && WEXITSTATUS(end) == ENOSYS) << "it opens no other port";
  ::close(listener);
}

TEST_F(ConfinementTest, AWorkerStillLooksUpNames) {
  ExpectCode(Confinement::kWorker, 0, [] {
    addrinfo* found = nullptr;
    const int error = ::getaddrinfo("localhost", "1", nullptr, &found);
    if (error == 0) ::freeaddrinfo(found);
    return error == 0 ? 0 : 1;
  });
}

TEST_F(ConfinementTest, TypesNothingIntoATerminal) {
  ExpectCode(Confinement::kServer, ENOSYS,
             [] { return ::ioctl(STDIN_FILENO, TIOCSTI, "x") == 0 ? 0 : errno; });
}

TEST_F(ConfinementTest, StartsThreadsAndWritesFiles) {
  ExpectCode(Confinement::kServer, 0, [] {
    int done = 0;
    std::thread([&] {
      const int fd = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
      done = fd >= 0 && ::write(fd, "x", 1) == 1 && ::close(fd) == 0;
    }).join();
    return done == 1 ? 0 : 1;
  });
}

}  // namespace
}  // namespace longhaul::process
