// A worker that is killed goes on where it was in its data, from its own disk (decision 0032).
//
//   worker 0 (--state-dir) ── kill -9 ── the same command line ──> its next batch, in whichever round the job is
//   worker 1 ─────────────────────────────────────────────────────────────────────────────────────────────────
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/e2e/support/job.h"

namespace longhaul::e2e {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

class WorkerState : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    StartServer({{"--min-workers", "1"}});
    other_ = &StartWorker(1, flags_);
  }
  Program& StartKeeper(const Flags& more = {}) {
    return StartWorker(0, Merged(Merged(flags_, {{"--state-dir", state()}}), more));
  }
  // The draws of its first (or last) round so far.
  static int Draws(Program& worker, bool last = false) {
    const std::string text = worker.Output();
    const std::string key = "\"draws\":";
    const size_t at = last ? text.rfind(key) : text.find(key);
    return at == std::string::npos ? -1 : std::stoi(text.substr(at + key.size()));
  }
  // Kills it after some rounds; how many it has made at least, and one more may be on the disk.
  static int KillAfter(Program& worker, int draws) {
    EXPECT_TRUE(Eventually([&] { return Draws(worker, true) >= draws; })) << worker.Everything();
    worker.Signal(SIGKILL);
    EXPECT_TRUE(worker.WaitForEnd());
    return Draws(worker, true);
  }
  std::string state() const { return directory() + "/state"; }
  std::string file(const char* end) const { return state() + "/rank-0" + end; }

  const Flags flags_ = {{"--fault", "delay=5ms"}, {"--lr", "0.01"}};
  Program* other_ = nullptr;
};

TEST_F(WorkerState, AKilledWorkerGoesOnAtItsPlaceInItsData) {
  Program* worker = &StartKeeper();
  int draws = 0;
  for (int life = 0; life < 2; ++life) {
    const int made = KillAfter(*worker, draws + 4);
    const int round = Draws(*other_, true);  // the job goes on without it
    ASSERT_TRUE(Eventually([&] { return Draws(*other_, true) >= round + 10; })) << other_->Everything();
    EXPECT_EQ(Draws(*worker), life == 0 ? 1 : draws + 1) << worker->Everything();
    worker = &StartKeeper();
    ASSERT_TRUE(worker->WaitForEvent("round")) << worker->Everything();
    draws = Draws(*worker) - 1;  // where the state was
    EXPECT_GE(draws, made);
    EXPECT_LE(draws, made + 1);
    EXPECT_THAT(worker->Errors(), HasSubstr("found a state in"));
  }
  EXPECT_TRUE(other_->running());
}

TEST_F(WorkerState, ATornStateIsRefusedByNameAndTrainingGoesOn) {
  Program* worker = &StartKeeper();
  KillAfter(*worker, 4);
  std::ifstream in(file(".state"), std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  ASSERT_GT(whole.size(), 8u);
  for (const size_t at : {size_t{0}, size_t{1}, whole.size() / 2, whole.size() - 1}) {
    for (const char* end : {".state", ".state.old", ".residuals"}) {
      std::ofstream(file(end), std::ios::binary | std::ios::trunc) << whole.substr(0, at);
    }
    worker = &StartKeeper();
    ASSERT_TRUE(worker->WaitForEvent("round")) << worker->Everything();
    EXPECT_THAT(worker->Errors(), HasSubstr("rank-0.state is damaged: not used"));
    EXPECT_THAT(worker->Errors(), Not(HasSubstr("found a state in")));
    worker->Signal(SIGKILL);
    ASSERT_TRUE(worker->WaitForEnd());
  }
}

TEST_F(WorkerState, AStateThatCannotBeWrittenOrIsOfOtherSettingsIsAWarning) {
  Program& first = StartKeeper({{"--state-every", "2"}});
  ASSERT_TRUE(Eventually([&] { return Draws(first, true) >= 3; })) << first.Everything();
  fs::remove_all(state());
  ASSERT_TRUE(first.WaitForError("training goes on")) << first.Everything();
  const int then = Draws(first, true);
  EXPECT_TRUE(Eventually([&] { return Draws(first, true) >= then + 3; })) << first.Everything();
  fs::create_directory(state());
  ASSERT_TRUE(Eventually([&] { return fs::exists(file(".state")); })) << first.Everything();
  KillAfter(first, 1);
  Program& second = StartKeeper({{"--batch", "9"}});
  ASSERT_TRUE(second.WaitForEvent("round")) << second.Everything();
  EXPECT_TRUE(second.WaitForError("the state is of another shard, batch or seed"));
}

}  // namespace
}  // namespace longhaul::e2e
