#include "transport/keys/key_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace longhaul::keys {
namespace {

TEST(CoreDumps, AProcessThatForbidsThemDiesWithoutOne) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    rlimit limit{};
    ::getrlimit(RLIMIT_CORE, &limit);
    limit.rlim_cur = limit.rlim_max;
    if (::setrlimit(RLIMIT_CORE, &limit) != 0) ::_exit(1);
    ForbidCoreDumps();
    rlimit after{};
    ::getrlimit(RLIMIT_CORE, &after);
    if (after.rlim_cur > 1 || after.rlim_max != limit.rlim_max) ::_exit(2);
    ::signal(SIGSEGV, SIG_DFL);  // sanitizers have their own
    ::raise(SIGSEGV);
    ::_exit(3);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << WEXITSTATUS(status);
  EXPECT_EQ(WTERMSIG(status), SIGSEGV);
  EXPECT_FALSE(WCOREDUMP(status));
}

}  // namespace
}  // namespace longhaul::keys
