// The shipped daemons give up the system calls that they do not need.
#include "tests/e2e/support/job.h"

namespace longhaul::e2e {
namespace {

using ::testing::HasSubstr;

class ConfinementOfDaemons : public JobTest {
 protected:
  static std::string StatusOf(const Program& program) {
    return ReadFile("/proc/" + std::to_string(program.pid()) + "/status");
  }
};

TEST_F(ConfinementOfDaemons, IsInForceWhenTheServerListensAndAWorkerTrains) {
  Program& server = StartServer();
  if (server.Errors().find("system calls are not confined") != std::string::npos)
    GTEST_SKIP() << server.Errors();
  EXPECT_THAT(StatusOf(server), HasSubstr("Seccomp:\t2\n"));
  EXPECT_THAT(StatusOf(server), HasSubstr("NoNewPrivs:\t1\n"));
  StartRunningJob();
  EXPECT_THAT(StatusOf(worker(0)), HasSubstr("Seccomp:\t2\n"));
  ExpectRunningJobFinishes();
}

TEST_F(ConfinementOfDaemons, IsOffWhereTheOperatorSaysSo) {
  EXPECT_THAT(StatusOf(StartServer({{"--no-seccomp", ""}})), HasSubstr("Seccomp:\t0\n"));
}

}  // namespace
}  // namespace longhaul::e2e
