// The thread of checkpoints and of the round log, on real files.
#include "server/checkpoint_thread.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/flags/job_json.h"
#include "tests/server/store/faulty_files.h"

namespace longhaul::server {
namespace {

using nlohmann::json;
using store::FaultyFiles;

struct CheckpointThreadTest : testing::Test {
  CheckpointThreadTest() {
    char pattern[] = "/tmp/longhaul-thread-XXXXXX";
    directory = ::mkdtemp(pattern);
  }
  ~CheckpointThreadTest() override { std::filesystem::remove_all(directory); }

  Result<std::unique_ptr<CheckpointThread>> Open(const std::string& settings) {
    auto writer = store::CheckpointWriter::Open(&files, directory, 3);
    if (!writer.ok()) return writer.status();
    auto thread = CheckpointThread::Open({.directory = directory,
                                          .job = "j",
                                          .settings = settings,
                                          .files = &files,
                                          .round_log = true,
                                          .world_size = 1},
                                         *std::move(writer), [](bool, const std::string&) {});
    if (!thread.ok()) return thread.status();
    EXPECT_TRUE((*thread)->Start([] {}).ok());
    return thread;
  }
  // A round that is written, or has failed.
  static void Log(CheckpointThread& thread, uint64_t round) {
    TensorImage image{.name = "w", .count = 1, .optimizer = "aggregate", .rounds = round, .round = round};
    image.values = std::make_shared<ZeroedArray<float>>(1);
    image.counted.resize(1);
    const uint64_t number = thread.Log(std::make_shared<TensorImage>(std::move(image)));
    for (int i = 0; i < 1000 && thread.logged() < number; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      (void)thread.TakeLogErrors();
    }
    ASSERT_EQ(thread.logged(), number);
  }

  FaultyFiles files;
  std::string directory;
};

TEST_F(CheckpointThreadTest, ALogOfAVersionWithFewerSettingsGoesOn) {
  const std::string now = json(JobSpec()).dump();
  json earlier = JobSpec();
  ASSERT_EQ(earlier.erase("quorum"), 1u);
  {
    auto thread = Open(earlier.dump());
    ASSERT_TRUE(thread.ok()) << thread.status().ToString();
    (*thread)->OnJobStart({.number = 7, .symbol_bytes = 1392});
    Log(**thread, 1);
    EXPECT_TRUE((*thread)->Finish(std::chrono::seconds(10)));
  }
  JobSpec other;
  other.quorum = 3;
  EXPECT_EQ(Open(json(other).dump()).status().code(), StatusCode::kSettingsMismatch);
  auto thread = Open(now);
  ASSERT_TRUE(thread.ok()) << thread.status().ToString();
  ASSERT_TRUE((*thread)->resumed().has_value());
  EXPECT_EQ((*thread)->resumed()->number, 7u);
}

TEST_F(CheckpointThreadTest, TheLogFailsUntilItIsWrittenAgain) {
  auto thread = Open("{}");
  ASSERT_TRUE(thread.ok()) << thread.status().ToString();
  (*thread)->OnJobStart({.number = 7, .symbol_bytes = 1392});
  Log(**thread, 1);
  EXPECT_FALSE((*thread)->log_failing());
  files.FailAt(0, FaultyFiles::Fault::kDies);
  Log(**thread, 2);
  EXPECT_TRUE((*thread)->log_failing());
  files.FailAt(0, FaultyFiles::Fault::kNone);
  Log(**thread, 3);
  EXPECT_FALSE((*thread)->log_failing());
}

}  // namespace
}  // namespace longhaul::server
