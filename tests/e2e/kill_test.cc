// When a process dies, no other waits longer than one idle time-out (3 s here), and their last words name it.
//
//   worker 0 ─┐
//             ├─ server      one of the three gets a signal in the middle of the job
//   worker 1 ─┘
#include <signal.h>

#include "tests/e2e/support/job.h"

namespace longhaul::e2e {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Between the time-out and the end of a process.
constexpr Duration kSlack = seconds(2) * kSlowness;

class Kill : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    if (HasFatalFailure()) return;
    StartJob({});
  }

  void StartJob(const Flags& server_flags) {
    server_ = &StartServer(Merged({{"--once", ""}}, server_flags));
    workers_ = {&StartWorker(0), &StartWorker(1)};
    for (Program* worker : workers_) ASSERT_TRUE(worker->WaitForEvent("round")) << worker->Everything();
  }

  // It ends with this code, at most `limit` after `since`.
  void ExpectEndWithin(Program& program, int code, Clock::time_point since, Duration limit) {
    ExpectEnd(program, code);
    EXPECT_LE(SecondsFrom(since, program.ended_at()), std::chrono::duration<double>(limit).count())
        << program.Everything();
  }

  Program* server_ = nullptr;
  std::vector<Program*> workers_;
};

TEST_F(Kill, AKilledWorkerEndsTheJobWithItsRankAndSite) {
  const auto killed = Clock::now();
  workers_[1]->Signal(SIGKILL);
  ExpectEndWithin(*server_, 1, killed, kIdle + kSlack);
  ExpectEndWithin(*workers_[0], 1, killed, kIdle + kSlack);
  EXPECT_THAT(server_->Errors(), AllOf(HasSubstr("rank 1"), HasSubstr("site1"), HasSubstr("PeerDead")));
  EXPECT_THAT(workers_[0]->Errors(), AllOf(HasSubstr("rank 1"), HasSubstr("site1"), HasSubstr("Aborted")));
  const auto abort = server_->FindEvent("abort");
  ASSERT_TRUE(abort);
  EXPECT_THAT(abort->value("message", ""), AllOf(HasSubstr("rank 1"), HasSubstr("site1")));
}

TEST_F(Kill, AKilledServerEndsTheWorkersWithPeerDeadAndItsAddress) {
  const auto killed = Clock::now();
  server_->Signal(SIGKILL);
  for (Program* worker : workers_) {
    ExpectEndWithin(*worker, 1, killed, kIdle + kSlack);
    EXPECT_THAT(worker->Errors(), AllOf(HasSubstr("PeerDead"), HasSubstr(address()),
                                        HasSubstr(std::to_string(kIdleSeconds) + ".0 s")));
  }
}

TEST_F(Kill, AWorkerThatIsToldToStopTakesItsLeaveAtOnce) {
  const auto told = Clock::now();
  workers_[0]->Signal(SIGTERM);
  ExpectEndWithin(*workers_[0], 1, told, kSlack);
  EXPECT_THAT(workers_[0]->Errors(), HasSubstr("interrupted; left the job"));
  // A job of two cannot go on: the others learn why, without waiting for a time-out.
  ExpectEndWithin(*server_, 1, told, kSlack);
  ExpectEndWithin(*workers_[1], 1, told, kSlack);
  EXPECT_THAT(server_->Errors(), AllOf(HasSubstr("rank 0"), HasSubstr("site0"), HasSubstr("SIGTERM")));
  EXPECT_THAT(workers_[1]->Errors(), AllOf(HasSubstr("rank 0"), HasSubstr("site0"), HasSubstr("SIGTERM")));
}

TEST_F(Kill, AServerThatIsToldToStopTellsItsWorkers) {
  const auto told = Clock::now();
  server_->Signal(SIGTERM);
  ExpectEndWithin(*server_, 1, told, kSlack);  // --once, and the job is not finished
  for (Program* worker : workers_) {
    ExpectEndWithin(*worker, 1, told, kSlack);
    EXPECT_THAT(worker->Errors(), AllOf(HasSubstr(address()), HasSubstr("the server is shutting down")));
  }
}

class KillOneOfEnough : public JobTest {};

TEST_F(KillOneOfEnough, WithMinWorkersTheJobGoesOnWithoutTheDead) {
  Program& server = StartServer({{"--once", ""}, {"--min-workers", "1"}});
  Program& doomed = StartWorker(0, {{"--rounds", "150"}, {"--fault", "delay=10ms"}});
  Program& survivor = StartWorker(1, {{"--rounds", "150"}, {"--fault", "delay=10ms"}});
  ASSERT_TRUE(doomed.WaitForEvent("round"));
  doomed.Signal(SIGKILL);
  ExpectEnd(survivor, 0);
  ExpectEnd(server, 0);
  EXPECT_EQ(survivor.FindEvent("finished")->value("rounds", 0), 150);
  const auto leave = server.FindEvent("leave");
  ASSERT_TRUE(leave);
  EXPECT_EQ(leave->value("rank", 99), 0);
  EXPECT_EQ(leave->value("code", ""), "PeerDead");
}

}  // namespace
}  // namespace longhaul::e2e
