// Jobs that come and go in one process leave nothing behind: as a server of many jobs (decision 0031) starts
// and ends them.
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "health/metric_page.h"
#include "server/program/jobs.h"
#include "tests/worker/client_harness.h"

namespace longhaul {
namespace {

// Sanitizers keep memory of their own for what is freed; what leaks they find themselves.
constexpr bool kSanitized = LONGHAUL_SLOWNESS > 1;

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
  EXPECT_TRUE(kSanitized || grown < 8 << 20) << grown;
}

// Two jobs of one process; the loop of a stands still while this wants it: in its log.
class TwoJobs {
 public:
  TwoJobs() : jobs_({Flags("a"), Flags("b")}, Options()) {}
  ~TwoJobs() {
    Release();
    std::thread signals([this] { jobs_.Stop(); });  // as the program has one for signals
    EXPECT_EQ(jobs_.Wait(), 0);
    signals.join();
  }
  server::Jobs& jobs() { return jobs_; }

  std::string AddressOf(const std::string& job) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return addresses_.contains(job); });
    return addresses_[job];
  }
  void WaitUntilStill() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return still_; });
  }
  void Release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }

 private:
  static server::JobFlags Flags(const std::string& name) {
    server::JobFlags job{.name = name, .line = 1, .flags = {}};
    job.flags.server.listen = "127.0.0.1:0";
    job.flags.server.insecure = true;
    job.flags.server.job = name;
    return job;
  }
  server::Jobs::Options Options() {
    server::Jobs::Options options;
    options.progress = "none";
    options.log = [this](LogLevel, std::string_view text) { On(std::string(text)); };
    return options;
  }
  void On(const std::string& text) {
    std::unique_lock lock(mutex_);
    const std::string listens = ": listens on ";
    const size_t at = text.find(listens);
    if (at != std::string::npos) {
      const size_t begin = at + listens.size();
      addresses_[text.substr(4, at - 4)] = text.substr(begin, text.find(',', begin) - begin);
    }
    still_ = still_ || text.starts_with("job a: worker rank 0 joined");
    changed_.notify_all();
    if (text.starts_with("job a: worker rank 0 joined")) changed_.wait(lock, [this] { return released_; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> addresses_;
  bool still_ = false;
  bool released_ = false;
  server::Jobs jobs_;  // last: it calls On
};

ConnectOptions WorkerOf(const std::string& job, const std::string& address) {
  ConnectOptions options;
  options.servers = {address};
  options.job = job;
  options.insecure = true;
  return options;
}

TEST(JobsTest, ALoopThatStandsStillIsToldAndHoldsNoOther) {
  TwoJobs two;
  const health::HealthSource source = two.jobs().Source();
  const auto a = WorkerOf("a", two.AddressOf("a"));
  const auto b = WorkerOf("b", two.AddressOf("b"));
  const auto eventually = [&source](const std::string& not_ready) {
    for (int i = 0; i < 100; ++i) {
      const health::LoopState state = source.look();
      EXPECT_TRUE(state.answers) << "a restart would end the other job";
      if (state.not_ready == not_ready) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  };
  EXPECT_TRUE(eventually(""));
  std::thread worker([&a] { (void)Client::Connect(a); });
  two.WaitUntilStill();
  Client client = MustConnect(b);
  EXPECT_TRUE(client.Declare("w", {.count = 100}).ok());
  EXPECT_TRUE(eventually("job a: the loop does not answer"));
  health::MetricPage page;
  EXPECT_TRUE(source.collect(&page));
  EXPECT_NE(page.Text().find("longhaul_job_up{job=\"a\"} 0"), std::string::npos);
  EXPECT_NE(page.Text().find("longhaul_job_up{job=\"b\"} 1"), std::string::npos);
  EXPECT_NE(page.Text().find("longhaul_server_joined{job=\"b\"} 1"), std::string::npos);
  two.Release();
  EXPECT_TRUE(eventually("")) << "it turns again";
  EXPECT_TRUE(client.Leave().ok());
  worker.join();
}

}  // namespace
}  // namespace longhaul
