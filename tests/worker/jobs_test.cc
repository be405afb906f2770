// Jobs that come and go in one process leave nothing behind: as a server of many jobs (decision 0031) starts
// and ends them.
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
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
    server::JobFlags job{.name = name, .line = 1, .flags = {}, .options = {}};
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
  EXPECT_TRUE(source.look().answers) << "whichever job is looked at last";
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

// Jobs whose file is read again. Wait has a thread of its own, as this one stands for the signals'.
class JobsReloadTest : public ::testing::Test {
 protected:
  ~JobsReloadTest() override { EXPECT_EQ(End(), ends_with_); }

  static server::JobFlags Flags(const std::string& name, const std::string& listen = "127.0.0.1:0") {
    server::JobFlags job{.name = name, .line = 7, .flags = {}, .options = {}};
    job.flags.server.listen = listen;
    job.flags.server.insecure = true;
    job.flags.server.job = name;
    job.flags.server.max_memory = ByteCount(100 << 20);
    return job;
  }
  void Start(std::vector<server::JobFlags> jobs, uint64_t memory = 0) {
    log_ = "";
    server::Jobs::Options options;
    options.progress = "none";
    options.memory = memory;
    options.log = [this](LogLevel, std::string_view text) { On(std::string(text)); };
    jobs_ = std::make_unique<server::Jobs>(std::move(jobs), options);
    over_ = false;
    waiter_ = std::thread([this] {
      code_ = jobs_->Wait();
      over_ = true;
    });
  }
  // What the thread that writes the next line with the text does then.
  void At(const std::string& text, std::function<void()> what) {
    const std::lock_guard lock(mutex_);
    at_ = text;
    what_ = std::move(what);
  }
  // That thread stands still, until Release.
  void HoldAt(const std::string& text) {
    At(text, [released = released_.get_future().share()] { released.wait(); });
  }
  void Release() { released_ = {}; }
  // Whether all end, without another word.
  bool Ends() {
    return Comes([this] { return over_.load(); });
  }
  // Whether all have started: a bit later than they say where they listen.
  bool AllServe() {
    return Comes([this] { return jobs_->Source().look().not_ready.empty(); });
  }
  int End() {
    Release();
    if (waiter_.joinable()) {
      jobs_->Stop();
      waiter_.join();
    }
    return code_;
  }
  std::string Log() {
    const std::lock_guard lock(mutex_);
    return log_;
  }
  size_t Count(const std::string& text) {
    const std::string log = Log();
    size_t count = 0;
    for (size_t at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) ++count;
    return count;
  }
  bool Says(const std::string& text, size_t times = 1) {
    const bool said = Comes([&] { return Count(text) >= times; });
    EXPECT_TRUE(said) << text << "\n" << Log();
    return said;
  }
  std::string AddressOf(const std::string& job) {
    const std::string listens = "job " + job + ": listens on ";
    if (!Says(listens)) return "";
    const std::string log = Log();
    const size_t begin = log.rfind(listens) + listens.size();
    return log.substr(begin, log.find(',', begin) - begin);
  }

  std::unique_ptr<server::Jobs> jobs_;
  int ends_with_ = 0;

 private:
  static bool Comes(const std::function<bool()>& what) {
    for (int i = 0; i < 400 * LONGHAUL_SLOWNESS && !what(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(25));
    return what();
  }
  void On(const std::string& text) {
    std::function<void()> what;
    {
      const std::lock_guard lock(mutex_);
      log_ += text + "\n";
      if (what_ && text.find(at_) != std::string::npos) what = std::exchange(what_, {});
    }
    if (what) what();
  }

  std::mutex mutex_;
  std::string log_;
  std::string at_;
  std::function<void()> what_;
  std::promise<void> released_;
  std::thread waiter_;
  std::atomic<bool> over_ = false;
  int code_ = 0;
};

TEST_F(JobsReloadTest, WhatHasLeftTheFileEndsInOrderAndWhatIsNewStarts) {
  Start({Flags("a"), Flags("b")});
  Client of_a = MustConnect(WorkerOf("a", AddressOf("a")));
  Client of_b = MustConnect(WorkerOf("b", AddressOf("b")));
  const Result<Tensor> lost = of_a.Declare("w", {.count = 100});
  const Result<Tensor> w = of_b.Declare("w", {.count = 100});
  ASSERT_TRUE(lost.ok() && w.ok());
  // c takes a's port: it can start once a has ended.
  const std::string port = AddressOf("a");
  ASSERT_TRUE(jobs_->Reload({Flags("b"), Flags("c", port)}).ok());
  EXPECT_TRUE(Says("job a: SIGHUP: it has left the file, and ends in order"));
  ASSERT_TRUE(Says("job a: ended with exit code 0"));
  ASSERT_EQ(AddressOf("c"), port) << Log();
  const std::vector<float> gradient(100, 0.5F);
  std::vector<float> out(100);
  const Status told = of_a.PushPull(*lost, gradient, out).Wait();
  EXPECT_NE(told.message().find("shutting down"), std::string::npos) << told.ToString();
  EXPECT_TRUE(of_b.PushPull(*w, gradient, out).Wait().ok()) << "b does not notice";
  EXPECT_TRUE(MustConnect(WorkerOf("c", port)).Leave().ok());
  EXPECT_TRUE(of_b.Leave().ok());
  health::MetricPage page;
  EXPECT_TRUE(jobs_->Source().collect(&page));
  EXPECT_EQ(page.Text().find("job=\"a\""), std::string::npos) << "it is forgotten";
  EXPECT_NE(page.Text().find("longhaul_job_up{job=\"c\"} 1"), std::string::npos);
}

TEST_F(JobsReloadTest, WhatHasChangedOfAJobThatRunsIsNamedAndLeftAlone) {
  auto before = Flags("a");
  before.options = {{"workers", "2"}, {"share", "3"}, {"policy", "zero"}};
  auto now = Flags("a");
  now.options = {{"workers", "4"}, {"policy", "zero"}, {"json", "x"}};
  Start({before});
  const std::string address = AddressOf("a");
  ASSERT_TRUE(jobs_->Reload({now}).ok());
  EXPECT_TRUE(
      Says("job a: SIGHUP: json, share, workers have changed in the file, which counts when the job "
           "starts again (line 7)"));
  EXPECT_TRUE(jobs_->Reload({before}).ok());
  EXPECT_EQ(Count("changed"), 1u) << "it is as it was";
  EXPECT_TRUE(MustConnect(WorkerOf("a", address)).Leave().ok());
}

TEST_F(JobsReloadTest, ANewJobHasWhatMemoryTheOthersLeaveOrNothingChanges) {
  Start({Flags("a"), Flags("b")}, 240 << 20);  // of 7/8, 10 MiB are left
  AddressOf("a");
  auto c = Flags("c");
  auto d = Flags("d");
  auto e = Flags("e");
  c.flags.server.max_memory = e.flags.server.max_memory = ByteCount(0);
  d.flags.server.max_memory = ByteCount(20 << 20);
  ASSERT_TRUE(jobs_->Reload({Flags("a"), d, c}).ok());
  EXPECT_TRUE(Says("job c: tensors may take 90 MiB")) << "b's and what was left, without d's";
  const Status none = jobs_->Reload({d, c, Flags("f"), e});
  EXPECT_EQ(none.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(none.message().find("no memory is left for job e (line 7)"), std::string::npos) << none.message();
  EXPECT_EQ(Count("job e") + Count("job f") + Count("job a: SIGHUP: it has left"), 0u) << Log();
}

TEST_F(JobsReloadTest, AJobThatHasEndedStartsAgainWhenItsSectionWasAway) {
  Start({Flags("a", "203.0.113.1:1"), Flags("b")});
  EXPECT_TRUE(Says("job a: ended with exit code 2"));
  ASSERT_TRUE(jobs_->Reload({Flags("a"), Flags("b")}).ok());
  EXPECT_TRUE(Says("job a: SIGHUP: it has ended"));
  ASSERT_TRUE(jobs_->Reload({Flags("b")}).ok());
  ASSERT_TRUE(jobs_->Reload({Flags("a"), Flags("b")}).ok()) << "at once: a is not forgotten yet";
  EXPECT_NE(AddressOf("a"), "");
  EXPECT_EQ(Count("job a: listens on"), 1u);
  EXPECT_EQ(End(), ends_with_ = 2) << "that of the first a counts";
  EXPECT_EQ(jobs_->Reload({Flags("a")}).code(), StatusCode::kFailedPrecondition);
}

TEST_F(JobsReloadTest, NothingStartsWhenAllHaveEnded) {
  Start({Flags("a", "203.0.113.1:1")});
  EXPECT_TRUE(Ends());
  EXPECT_EQ(jobs_->Reload({Flags("b")}), Status(StatusCode::kFailedPrecondition, "all jobs end"));
  EXPECT_EQ(End(), ends_with_ = 2);
}

// Jobs that other servers go on with: each has a round log.
class JobsHandOverTest : public JobsReloadTest {
 protected:
  JobsHandOverTest() { std::filesystem::create_directory(directory_); }
  ~JobsHandOverTest() override {
    End();
    std::filesystem::remove_all(directory_);
  }
  server::JobFlags Logged(const std::string& name, bool once = false) const {
    server::JobFlags job = Flags(name);
    job.flags.server.checkpoint_dir = directory_ + "/" + name;
    job.flags.server.round_log = true;
    job.flags.server.once = once;
    return job;
  }

  const std::string directory_ = ::testing::TempDir() + "jobs_hand_over." + std::to_string(getpid());
};

// Also not what is new in the file and waits for one that has left it, which ends as any that stops.
TEST_F(JobsHandOverTest, NothingStartsOnceAllEnd) {
  for (const bool hand_over : {true, false}) {
    HoldAt("job gone: listens on");
    Start({Logged("gone", true)});
    ASSERT_TRUE(Says("job gone: listens on"));
    ASSERT_EQ(jobs_->Reload({Flags("next")}), Status());
    if (hand_over) {
      ASSERT_EQ(jobs_->HandOver(), Status());
    } else {
      jobs_->Stop();
    }
    const Status end(StatusCode::kFailedPrecondition, "all jobs end");
    EXPECT_EQ(jobs_->Reload({Flags("later")}), end);
    EXPECT_EQ(jobs_->HandOver(), end);
    Release();
    EXPECT_TRUE(Ends());
    EXPECT_EQ(Count("next: listens on") + Count("later: listens on"), 0u) << Log();
    EXPECT_EQ(Count("job gone: ended with exit code 1, Cancelled: told to stop"), 1u) << Log();
    EXPECT_EQ(End(), ends_with_ = 1);
  }
}

TEST_F(JobsHandOverTest, OneThatStillStartsEndsWell) {
  HoldAt("job a: listens on");
  Start({Logged("a", true)});
  ASSERT_TRUE(Says("job a: listens on"));
  ASSERT_EQ(jobs_->HandOver(), Status());
  Release();
  EXPECT_TRUE(Ends());
  EXPECT_EQ(Count("job a: ended with exit code 0"), 1u) << Log();
}

TEST_F(JobsHandOverTest, OneThatHasLeftTheFileIsNotAsked) {
  Start({Logged("a"), Flags("b")});
  ASSERT_TRUE(AllServe());
  const ConnectOptions worker = WorkerOf("b", AddressOf("b"));
  EXPECT_EQ(jobs_->HandOver().code(), StatusCode::kFailedPrecondition) << "b has no round log";
  HoldAt("job b: worker rank 0 joined");
  std::thread joins([&worker] { (void)Client::Connect(worker); });
  EXPECT_TRUE(Says("job b: worker rank 0 joined"));
  EXPECT_EQ(jobs_->Reload({Logged("a")}), Status());
  EXPECT_EQ(jobs_->HandOver(), Status());
  Release();
  joins.join();
  EXPECT_TRUE(Ends());
}

// The order comes between the job's end and its server's.
TEST_F(JobsHandOverTest, AJobThatHasFailedDoesNotEndWell) {
  Start({Logged("a", true)});
  ASSERT_TRUE(AllServe());
  Client client = MustConnect(WorkerOf("a", AddressOf("a")));
  At("job a: job aborted", [this] { EXPECT_EQ(jobs_->HandOver(), Status()); });
  (void)client.Leave({StatusCode::kAborted, "no more"});
  EXPECT_TRUE(Ends());
  EXPECT_EQ(End(), ends_with_ = 1);
}

}  // namespace
}  // namespace longhaul
