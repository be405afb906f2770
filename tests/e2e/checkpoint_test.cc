// A server dies in mid-job, and the next one on the same directory has what it had.
//
//   worker 0 ─┐                                             ┌─ a client that pulls
//             ├─ server ── checkpoints ── another server ───┤
//   worker 1 ─┘  kill -9                                    └─ or two workers that train on
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/mount.h>

#include <cstring>
#include <filesystem>

#include "longhaul/client.h"
#include "server/store/checkpoint.h"
#include "tests/e2e/support/job.h"

namespace longhaul::e2e {
namespace {

using server::TensorImage;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Checkpoint : public JobTest {
 protected:
  std::string checkpoints() const { return directory() + "/ck"; }
  Program& StartKeeper(const Flags& more = {}) {
    return StartServer(Merged({{"--checkpoint-dir", checkpoints()}, {"--checkpoint-every", "5"}}, more));
  }
  // Two workers in training; the delay makes a round last 20 ms or more.
  void Train(const Flags& more = {}) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      workers_.push_back(&StartWorker(
          rank, Merged({{"--fault", "delay=10ms"}, {"--lr", "0.01"}, {"--momentum", "0.9"}}, more)));
    }
  }
  server::store::LoadedCheckpoint Newest() {
    auto newest = server::store::LoadNewestCheckpoint(SystemFiles(), checkpoints());
    EXPECT_TRUE(newest.ok() && newest->loaded && newest->refused.empty());
    return *std::move(newest->loaded);
  }
  static uint64_t Count(const std::string& text, const std::string& part) {
    uint64_t count = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
    return count;
  }

  std::vector<Program*> workers_;
};

TEST_F(Checkpoint, AServerThatIsKilledInMidJobGoesOnBitForBitFromItsLastCheckpoint) {
  Program& first = StartKeeper();
  Train();
  ASSERT_TRUE(Eventually([&] { return Count(first.Output(), "\"event\":\"checkpoint\"") >= 3; }))
      << first.Everything();
  first.Signal(SIGKILL);
  ASSERT_TRUE(first.WaitForEnd());
  for (Program* worker : workers_) ExpectEnd(*worker, 1);

  const server::store::LoadedCheckpoint last = Newest();
  EXPECT_GE(last.image.rounds, 15u);
  Program& second = StartKeeper({{"--workers", "1"}});
  EXPECT_TRUE(second.WaitForError("going on from " + last.path)) << second.Everything();
  auto client = Client::Connect({.servers = {address()}, .key_file = key_file()});
  ASSERT_TRUE(client.ok()) << client.status().ToString();
  size_t elements = 0;
  for (const TensorImage& tensor : last.image.tensors) {
    const std::vector<float> other(tensor.count, 77);
    const auto declared = client->Declare(
        tensor.name, {.count = tensor.count, .optimizer = tensor.optimizer, .initial = other});
    ASSERT_TRUE(declared.ok()) << declared.status().ToString();
    std::vector<float> values(tensor.count);
    ASSERT_TRUE(client->Pull(*declared, values).Wait().ok());
    EXPECT_EQ(std::memcmp(values.data(), tensor.values->data(), tensor.values->bytes()), 0) << tensor.name;
    elements += values.size();
  }
  EXPECT_GT(elements, 1000u);
  const auto refused = client->Declare(last.image.tensors[0].name,
                                       {.count = last.image.tensors[0].count + 1, .optimizer = "sgd:lr=1"});
  EXPECT_EQ(refused.status().code(), StatusCode::kSettingsMismatch);
}

TEST_F(Checkpoint, TrainingGoesOnWhereItWasAndItsRoundsAreCountedOn) {
  Program& first = StartKeeper();
  Train({{"--rounds", "40"}});
  for (Program* worker : workers_) ExpectEnd(*worker, 0);
  ASSERT_TRUE(first.WaitForEvent("finished")) << first.Everything();
  first.Signal(SIGTERM);
  ExpectEnd(first, 0);
  EXPECT_EQ(Newest().image.rounds, 40u) << "the last one is of the job's end";

  Program& second = StartKeeper({{"--once", ""}});
  workers_.clear();
  Train({{"--rounds", "12"}});
  for (Program* worker : workers_) ExpectEnd(*worker, 0);
  ExpectEnd(second, 0);
  EXPECT_EQ(Newest().image.rounds, 52u);
}

TEST_F(Checkpoint, SigtermWritesALastOneInBoundedTime) {
  Program& server = StartKeeper({{"--checkpoint-every", "1000000"}});
  Train();
  ASSERT_TRUE(Eventually([&] { return Count(server.Output(), "\"event\":\"round\"") >= 10; }))
      << server.Everything();
  const auto told = Clock::now();
  server.Signal(SIGTERM);
  ASSERT_TRUE(server.WaitForEnd()) << server.Everything();
  EXPECT_LT(SecondsFrom(told, server.ended_at()), 5.0 * kSlowness);
  EXPECT_GE(Newest().image.rounds, 10u);
  EXPECT_TRUE(server.FindEvent("checkpoint")) << server.Everything();
}

TEST_F(Checkpoint, OfADamagedOneTheOneBeforeIsUsedAndBothAreNamed) {
  Program& first = StartKeeper();
  Train({{"--rounds", "20"}});
  for (Program* worker : workers_) ExpectEnd(*worker, 0);
  ASSERT_TRUE(first.WaitForEvent("finished"));
  first.Signal(SIGTERM);
  ExpectEnd(first, 0);
  const std::string newest = Newest().path;
  std::filesystem::resize_file(newest + "/parameters.safetensors", 1000);
  Program& second = StartKeeper();
  EXPECT_TRUE(second.WaitForError("checkpoint " + newest + " is not used: DataLoss")) << second.Everything();
  EXPECT_TRUE(second.WaitForError("going on from " + checkpoints())) << second.Everything();
}

TEST_F(Checkpoint, AFullDiskIsOneWarningAndACounterAndTrainingGoesOn) {
  std::filesystem::create_directory(checkpoints());
  if (::mount("none", checkpoints().c_str(), "tmpfs", 0, "size=64k") != 0)
    GTEST_SKIP() << "no right to mount";
  Program& server = StartKeeper({{"--once", ""}});
  Train({{"--rounds", "30"}});
  for (Program* worker : workers_) ExpectEnd(*worker, 0);
  ExpectEnd(server, 0);
  ::umount2(checkpoints().c_str(), MNT_DETACH);
  const auto finished = server.FindEvent("finished");
  ASSERT_TRUE(finished);
  EXPECT_EQ(finished->value("rounds", 0), 30);
  EXPECT_GE(finished->value("checkpoints_failed", 0), 4);
  EXPECT_EQ(finished->value("checkpoints_written", 1), 0);
  const std::string errors = server.Errors();
  EXPECT_EQ(Count(errors, "could not be written"), 1u) << errors;
  EXPECT_THAT(errors, AllOf(HasSubstr("training goes on"), HasSubstr("No space left on device")));
}

TEST_F(Checkpoint, ADirectoryThatCannotBeUsedIsFoundOutAtTheStart) {
  Program& server = Start("longhaul-server", {"--listen", "127.0.0.1:0", "--key", key_file(),
                                              "--checkpoint-dir", "/proc/longhaul/ck"});
  ExpectEnd(server, 3);
  EXPECT_THAT(server.Errors(), HasSubstr("/proc/longhaul/ck"));
}

}  // namespace
}  // namespace longhaul::e2e
