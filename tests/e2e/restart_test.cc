// A job outlives its server (decision 0028): killed in mid-job and started again on the same directory, while
// the workers wait for it.
//
//   worker 0 ─┐            kill -9, 1 s
//             ├─ server ───────────────── another server, same log ── the job's end
//   worker 1 ─┘
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/mount.h>

#include <cstring>
#include <filesystem>
#include <thread>

#include "server/store/checkpoint.h"
#include "tests/e2e/support/job.h"

namespace longhaul::e2e {
namespace {

using server::JobImage;
using server::TensorImage;
using ::testing::HasSubstr;
using ::testing::Not;

class Restart : public JobTest {
 protected:
  static constexpr int kRounds = 60;

  std::string log_directory(const std::string& name) const { return directory() + "/" + name; }
  Program& StartLogger(const std::string& name, const Flags& more = {}) {
    return StartServer(Merged({{"--checkpoint-dir", log_directory(name)},
                               {"--checkpoint-every", "25"},
                               {"--round-log", ""},
                               {"--deterministic", ""},
                               {"--high-share", "1"},  // nothing is lost: what counts depends on no time
                               {"--once", ""}},
                              more));
  }
  // Where the server before was.
  Program& StartAgain(const std::string& name) { return StartLogger(name, {{"--listen", address()}}); }
  // The delay makes a round last 20 ms or more.
  void Train(const Flags& more = {}) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      workers_.push_back(&StartWorker(rank, Merged({{"--rounds", std::to_string(kRounds)},
                                                    {"--fault", "delay=10ms"},
                                                    {"--lr", "0.01"},
                                                    {"--momentum", "0.9"},
                                                    {"--reconnect-timeout", "60"}},
                                                   more)));
    }
  }
  static size_t Rounds(Program& server) {
    size_t count = 0;
    const std::string text = server.Output();
    const std::string event = "\"event\":\"round\"";
    for (size_t at = text.find(event); at != std::string::npos; at = text.find(event, at + 1)) ++count;
    return count;
  }
  static void WaitForRounds(Program& server, size_t rounds) {
    ASSERT_TRUE(Eventually([&] { return Rounds(server) >= rounds; })) << server.Everything();
  }
  static void Kill(Program& server) {
    server.Signal(SIGKILL);
    ASSERT_TRUE(server.WaitForEnd());
  }
  void ExpectWorkersEnd(int code) {
    for (Program* worker : workers_) ExpectEnd(*worker, code);
  }
  JobImage Final(const std::string& name) {
    auto newest = server::store::LoadNewestCheckpoint(SystemFiles(), log_directory(name));
    EXPECT_TRUE(newest.ok() && newest->loaded && newest->refused.empty());
    return newest.ok() && newest->loaded ? std::move(newest->loaded->image) : JobImage();
  }
  // The job from its beginning to its end with one server.
  JobImage Uninterrupted() {
    Program& server = StartLogger("whole");
    Train();
    ExpectWorkersEnd(0);
    ExpectEnd(server, 0);
    workers_.clear();
    return Final("whole");
  }
  static void ExpectSame(const JobImage& a, const JobImage& b) {
    ASSERT_EQ(a.tensors.size(), b.tensors.size());
    EXPECT_GE(a.tensors.size(), 2u);
    for (const TensorImage& tensor : a.tensors) {
      const auto other = std::ranges::find(b.tensors, tensor.name, &TensorImage::name);
      ASSERT_NE(other, b.tensors.end()) << tensor.name;
      EXPECT_EQ(tensor.rounds, other->rounds) << tensor.name;
      ASSERT_EQ(tensor.count, other->count);
      EXPECT_EQ(std::memcmp(tensor.values->data(), other->values->data(), tensor.values->bytes()), 0)
          << tensor.name;
      ASSERT_EQ(tensor.state.size(), 1u);
      EXPECT_EQ(
          std::memcmp(tensor.state[0].values->data(), other->state[0].values->data(), tensor.values->bytes()),
          0)
          << tensor.name << "'s momentum";
    }
  }

  std::vector<Program*> workers_;
};

TEST_F(Restart, OfAKilledServerChangesNoBitOfTheModel) {
  const JobImage whole = Uninterrupted();
  Program& first = StartLogger("cut");
  Train();
  WaitForRounds(first, 12);
  Kill(first);
  std::this_thread::sleep_for(seconds(1));
  Program& second = StartAgain("cut");
  ExpectWorkersEnd(0);
  ExpectEnd(second, 0);
  ExpectSame(whole, Final("cut"));
  EXPECT_THAT(workers_[0]->Errors(), HasSubstr("is back after"));
}

// As a new version of the daemon takes the place of the old one.
TEST_F(Restart, AJobIsHandedOverWithoutALostRound) {
  const JobImage whole = Uninterrupted();
  Program& first = StartLogger("cut");
  Train();
  WaitForRounds(first, 12);
  first.Signal(SIGUSR2);
  ExpectEnd(first, 0);
  EXPECT_THAT(first.Errors(), HasSubstr("SIGUSR2: handing over"));
  EXPECT_THAT(first.Output(), Not(HasSubstr("\"event\":\"leave\""))) << "no worker has left";
  for (Program* worker : workers_) {
    EXPECT_TRUE(worker->WaitForError("hands the job over to the one that starts next"))
        << worker->Everything();
  }
  Program& second = StartAgain("cut");
  ExpectWorkersEnd(0);
  ExpectEnd(second, 0);
  ExpectSame(whole, Final("cut"));
  EXPECT_EQ(Rounds(first) + Rounds(second), size_t{kRounds}) << "the rounds in progress ended before";
}

// As on a host that is busy.
TEST_F(Restart, AWorkerThatStandsStillDoesNotHoldAHandOverUp) {
  const JobImage whole = Uninterrupted();
  Program& first = StartLogger("cut");
  Train();
  WaitForRounds(first, 12);
  workers_[1]->Signal(SIGSTOP);
  const auto begun = Clock::now();
  first.Signal(SIGUSR2);
  ExpectEnd(first, 0);
  EXPECT_LT(SecondsFrom(begun, first.ended_at()), (2 + 1.5 + 2) * kSlowness) << "last rounds, drain, slack";
  Program& second = StartAgain("cut");
  workers_[1]->Signal(SIGCONT);
  ExpectWorkersEnd(0);
  ExpectEnd(second, 0);
  ExpectSame(whole, Final("cut"));
}

TEST_F(Restart, AJobWhoseLogCannotBeWrittenIsNotHandedOver) {
  std::filesystem::create_directory(log_directory("small"));
  if (::mount("none", log_directory("small").c_str(), "tmpfs", 0, "size=64k") != 0)
    GTEST_SKIP() << "no right to mount";
  Program& server = StartLogger("small");
  Train();
  WaitForRounds(server, 5);
  server.Signal(SIGUSR2);
  EXPECT_TRUE(server.WaitForError("nothing is handed over: the round log cannot be written"))
      << server.Everything();
  ExpectWorkersEnd(0);
  ExpectEnd(server, 0);
  ::umount2(log_directory("small").c_str(), MNT_DETACH);
}

TEST_F(Restart, AJobThatNoServerCouldGoOnWithIsNotHandedOver) {
  Program& server = StartServer({{"--checkpoint-dir", log_directory("plain")}, {"--once", ""}});
  Train();
  WaitForRounds(server, 5);
  server.Signal(SIGUSR2);
  ASSERT_TRUE(server.WaitForError("is off: no server could go on")) << server.Everything();
  ExpectWorkersEnd(0);
  ExpectEnd(server, 0);
}

TEST_F(Restart, GoesOnWithoutAWorkerThatHadLeft) {
  Program& first = StartLogger("cut", {{"--workers", "3"}, {"--min-workers", "2"}});
  const Flags of_three = {{"--world-size", "3"}};
  Train(of_three);
  Program& leaves = StartWorker(
      2, Merged({{"--rounds", "5000"}, {"--fault", "delay=10ms"}, {"--lr", "0.01"}, {"--momentum", "0.9"}},
                of_three));
  WaitForRounds(first, 5);
  leaves.Signal(SIGTERM);
  ASSERT_TRUE(leaves.WaitForEnd());
  WaitForRounds(first, 10);
  Kill(first);
  Program& second = StartLogger("cut", {{"--workers", "3"}, {"--min-workers", "2"}, {"--listen", address()}});
  ExpectWorkersEnd(0);
  ExpectEnd(second, 0);
}

TEST_F(Restart, MayHappenAgainAndAgain) {
  const JobImage whole = Uninterrupted();
  Program* server = &StartLogger("cut");
  Train();
  for (int kill = 0; kill < 5; ++kill) {
    WaitForRounds(*server, 3 + static_cast<size_t>(kill));
    Kill(*server);
    server = &StartAgain("cut");
  }
  ExpectWorkersEnd(0);
  ExpectEnd(*server, 0);
  ExpectSame(whole, Final("cut"));
}

// It stands still while its server dies and a successor takes its rank at the next one, and goes on when that
// is dead too: no server could tell it. Of its pushes some have counted, and the log knows only what of the
// successor's has.
TEST_F(Restart, AWorkerThatWasReplacedIsRefusedByTheNextServerToo) {
  Program& first = StartLogger("cut");
  Train({{"--rounds", "5000"}});
  WaitForRounds(first, 5);
  workers_[0]->Signal(SIGSTOP);
  Kill(first);
  Program& second = StartAgain("cut");
  Program& successor = StartWorker(
      0, {{"--rounds", "5000"}, {"--fault", "delay=10ms"}, {"--lr", "0.01"}, {"--momentum", "0.9"}});
  WaitForRounds(second, 5);
  successor.Signal(SIGKILL);
  ASSERT_TRUE(successor.WaitForEnd());
  Kill(second);
  StartAgain("cut");
  workers_[0]->Signal(SIGCONT);
  ExpectEnd(*workers_[0], 1);
  EXPECT_THAT(workers_[0]->Errors(), HasSubstr("another process has followed this one as rank 0"));
}

TEST_F(Restart, OfAnotherJobIsRefusedByName) {
  Program& first = StartLogger("cut");
  Train();
  WaitForRounds(first, 5);
  Kill(first);
  StartAgain("empty");
  ExpectWorkersEnd(1);
  EXPECT_THAT(workers_[0]->Everything() + workers_[1]->Everything(), HasSubstr("has another job now"));
}

TEST_F(Restart, FromAnOlderLogIsRefusedByName) {
  Program& first = StartLogger("cut");
  Train();
  WaitForRounds(first, 5);
  // A copy is what a backup would have: whole records up to some round.
  std::filesystem::copy(log_directory("cut"), log_directory("old"), std::filesystem::copy_options::recursive);
  WaitForRounds(first, 15);
  Kill(first);
  StartAgain("old");
  ExpectWorkersEnd(1);
  EXPECT_THAT(workers_[0]->Everything() + workers_[1]->Everything(), HasSubstr("has lost rounds"));
}

// Their machine was given up, and they still run: a new attempt of the job has a server that refuses them.
TEST_F(Restart, ForANewAttemptEndsTheWorkersOfTheOneBefore) {
  Program& first = StartLogger("cut");
  Train({{"--incarnation", "1"}});
  WaitForRounds(first, 5);
  Kill(first);
  Program& second = StartLogger("cut", {{"--listen", address()}, {"--min-incarnation", "2"}});
  ExpectWorkersEnd(1);
  for (Program* worker : workers_)
    EXPECT_THAT(worker->Errors(), HasSubstr("of an earlier attempt of the job"));
  EXPECT_THAT(second.Errors(), HasSubstr("has incarnation 1"));
  workers_.clear();
  Train({{"--incarnation", "2"}});
  ExpectWorkersEnd(0);
  ExpectEnd(second, 0);
  EXPECT_THAT(second.Output(), Not(HasSubstr("\"incarnation\":1")));
}

TEST_F(Restart, ThatNeverComesEndsTheWaitByName) {
  Program& first = StartLogger("cut");
  Train({{"--reconnect-timeout", "2"}});
  WaitForRounds(first, 5);
  const auto killed = Clock::now();
  Kill(first);
  ExpectWorkersEnd(1);
  for (Program* worker : workers_) {
    EXPECT_LT(SecondsFrom(killed, worker->ended_at()), (kIdleSeconds + 2 + 3) * 1.0 * kSlowness);
    EXPECT_THAT(worker->Everything(), HasSubstr("has not come back within"));
  }
}

}  // namespace
}  // namespace longhaul::e2e
