// Jobs that come and go in one process leave nothing behind: as a server of many jobs (decision 0031) starts
// and ends them.
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <vector>

#include "tests/worker/client_harness.h"

namespace longhaul {
namespace {

size_t Descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}
size_t Threads() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}
int64_t ResidentBytes() {
  malloc_trim(0);
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

class JobsInTurnTest : public ::testing::Test {
 protected:
  ~JobsInTurnTest() override { std::filesystem::remove_all(directory_); }

  // One job of one worker, with a checkpoint, from the server's start to its end.
  void RunJob() {
    std::filesystem::remove_all(directory_);
    ServerOptions options = EverythingReliable();
    options.once = true;
    options.checkpoint_dir = directory_;
    Server server = StartServer(1, options);
    {
      Client client = MustConnect(OptionsFor(server, 0, 1));
      const Result<Tensor> w = client.Declare("w", {.count = 50'000});
      ASSERT_TRUE(w.ok()) << w.status().ToString();
      const std::vector<float> gradient(50'000, 0.5F);
      std::vector<float> out(50'000);
      for (int round = 0; round < 2; ++round) {
        const Status pushed = client.PushPull(*w, gradient, out).Wait();
        ASSERT_TRUE(pushed.ok()) << pushed.ToString();
      }
      EXPECT_EQ(out[49'999], 0.5F);
      EXPECT_TRUE(client.Leave().ok());
    }
    EXPECT_TRUE(server.Wait().ok());
  }

  const std::string directory_ = ::testing::TempDir() + "jobs_in_turn." + std::to_string(getpid());
};

TEST_F(JobsInTurnTest, AHundredJobsLeaveNoMemoryNoDescriptorAndNoThread) {
  for (int i = 0; i < 10; ++i) RunJob();  // what is made once
  const size_t descriptors = Descriptors();
  const size_t threads = Threads();
  const int64_t before = ResidentBytes();
  for (int i = 0; i < 100; ++i) ASSERT_NO_FATAL_FAILURE(RunJob());
  EXPECT_EQ(Descriptors(), descriptors);
  EXPECT_EQ(Threads(), threads);
  // A job's tensors are 400 KB with its sums: one in five that stayed would show.
  const int64_t grown = ResidentBytes() - before;
  std::printf("grown by %lld KiB in 100 jobs\n", static_cast<long long>(grown / 1024));
  EXPECT_LT(grown, 8 << 20);
}

}  // namespace
}  // namespace longhaul
