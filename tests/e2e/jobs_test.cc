// Several jobs in one server process (decision 0031): real daemons.
//
//   workers 0, 1 of job0 ─┐
//   ...                   ├─ longhaul-server --jobs FILE    a port and a directory for each
//   workers 0, 1 of job7 ─┘
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/mount.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>
#include <vector>

#include "server/store/checkpoint.h"
#include "tests/e2e/support/full_pipe.h"
#include "tests/e2e/support/job.h"
#include "tests/e2e/support/udp_peer.h"
#include "tests/health/exposition_reader.h"
#include "tests/health/tcp_peer.h"
#include "transport/crypto/keygen.h"
#include "transport/keys/key_file.h"
#include "transport/udp/resolve.h"

namespace longhaul::e2e {
namespace {

using ::testing::HasSubstr;

class JobsTest : public JobTest {
 protected:
  static constexpr int kRounds = 30;

  // Nothing is lost: what counts depends on no time.
  static std::string Common() {
    return "insecure = true\nonce = true\nworkers = 2\nlisten = \"127.0.0.1:0\"\ndeterministic = true\n"
           "high-share = 1\nidle-timeout = " +
           std::to_string(kIdleSeconds) + "\n";
  }
  std::string Section(const std::string& name, const std::string& more = "") const {
    return "[job." + name + "]\ncheckpoint-dir = \"" + directory() + "/" + name + "\"\n" + more;
  }
  Program& StartJobs(const std::string& text, const std::vector<std::string>& more = {}) {
    const std::string path = directory() + "/jobs.toml";
    std::ofstream(path) << text;
    std::vector<std::string> arguments{"--jobs", path, "--progress", "json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Start("longhaul-server", arguments, LeaveTerminal);
  }
  // The first line of an event of one job.
  static std::optional<nlohmann::json> Of(Program& jobs, const std::string& job, const std::string& event) {
    std::istringstream lines(jobs.Output());
    for (std::string line; std::getline(lines, line);) {
      auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (object.is_object() && object.value("event", "") == event && object.value("job", "") == job)
        return object;
    }
    return std::nullopt;
  }
  static nlohmann::json WaitFor(Program& jobs, const std::string& job, const std::string& event) {
    std::optional<nlohmann::json> found;
    EXPECT_TRUE(Eventually([&] { return (found = Of(jobs, job, event)).has_value(); }))
        << job << " " << event << "\n"
        << jobs.Everything();
    return found.value_or(nlohmann::json::object());
  }
  Program& Worker(const std::string& address, const std::string& job, uint32_t rank, const Flags& more = {}) {
    return StartWorker(rank, Merged({{"--join", address},
                                     {"--job", job},
                                     {"--insecure", ""},
                                     {"--rounds", std::to_string(kRounds)},
                                     {"--lr", "0.01"},
                                     {"--momentum", "0.9"}},
                                    more));
  }
  std::vector<float> Learned(const std::string& job) const {
    auto newest = server::store::LoadNewestCheckpoint(SystemFiles(), directory() + "/" + job);
    EXPECT_TRUE(newest.ok() && newest->loaded) << job;
    std::vector<float> all;
    if (!newest.ok() || !newest->loaded) return all;
    std::map<std::string, std::vector<float>> by_name;
    for (const auto& tensor : newest->loaded->image.tensors) {
      EXPECT_EQ(tensor.rounds, uint64_t{kRounds}) << job;
      auto& values = by_name[tensor.name];
      values.resize(tensor.values->bytes() / sizeof(float));
      std::memcpy(values.data(), tensor.values->data(), tensor.values->bytes());
    }
    for (const auto& [name, values] : by_name) all.insert(all.end(), values.begin(), values.end());
    return all;
  }
};

TEST_F(JobsTest, EightAtOnceOfWhichThreeDieAndTheOthersLearnAsAlone) {
  // Alone, for comparison.
  Program& one = StartJobs(Common() + Section("alone"));
  const std::string address = WaitFor(one, "alone", "listening").value("address", "");
  for (uint32_t rank : {0, 1}) Worker(address, "alone", rank);
  ExpectEnd(one, 0);
  const std::vector<float> alone = Learned("alone");
  ASSERT_FALSE(alone.empty());

  std::string text = Common();
  for (int i = 0; i < 8; ++i) {
    const std::string limit = i == 6 ? "max-model-bytes = \"64kb\"\n" : "";
    text += Section("job" + std::to_string(i), "share = " + std::to_string(1 + i % 2) + "\n" + limit);
  }
  text += "[job.homeless]\ncheckpoint-dir = \"/proc/no/such\"\n";
  Program& jobs = StartJobs(text, {"--capacity", "1gbit", "--metrics", "127.0.0.1:0"});
  std::map<std::string, std::vector<Program*>> workers;
  for (int i = 0; i < 8; ++i) {
    const std::string job = "job" + std::to_string(i);
    const std::string at = WaitFor(jobs, job, "listening").value("address", "");
    const Flags endless = i == 7 ? Flags{{"--rounds", "1000000"}} : Flags();
    for (uint32_t rank : {0, 1}) workers[job].push_back(&Worker(at, job, rank, endless));
  }
  EXPECT_TRUE(jobs.WaitForError("job homeless: ended with exit code 3, NotFound"));
  WaitFor(jobs, "job7", "round");
  workers["job7"][1]->Signal(SIGKILL);
  EXPECT_TRUE(jobs.WaitForError("job job7: ended with exit code 1"));
  EXPECT_TRUE(jobs.WaitForError("job job6: ended with exit code 1")) << "its model is too large";

  ExpectEnd(jobs, 3, kPatience * 2);
  for (int i = 0; i < 6; ++i) {
    const std::string job = "job" + std::to_string(i);
    for (Program* worker : workers[job]) ExpectEnd(*worker, 0);
    EXPECT_EQ(Learned(job), alone) << job;
    EXPECT_EQ(WaitFor(jobs, job, "ended").value("exit_code", -1), 0);
  }
  EXPECT_EQ(WaitFor(jobs, "job6", "ended").value("exit_code", -1), 1);
  EXPECT_EQ(WaitFor(jobs, "job7", "ended").value("exit_code", -1), 1);
  EXPECT_EQ(WaitFor(jobs, "homeless", "ended").value("exit_code", -1), 3);
}

TEST_F(JobsTest, OnePortShowsAllAndATerminationDrainsAll) {
  std::string text = Common() + "once = false\n";
  for (const char* job : {"a", "b", "c"}) text += Section(job);
  text.replace(text.find("once = true\n"), 12, "");
  Program& jobs = StartJobs(text, {"--metrics", "127.0.0.1:0"});
  std::vector<Program*> workers;
  for (const std::string job : {"a", "b"}) {
    const std::string at = WaitFor(jobs, job, "listening").value("address", "");
    ASSERT_NE(at, "");
    for (uint32_t rank : {0, 1}) workers.push_back(&Worker(at, job, rank, {{"--rounds", "1000000"}}));
  }
  WaitFor(jobs, "a", "round");
  WaitFor(jobs, "b", "round");
  WaitFor(jobs, "c", "listening");
  const auto port = udp::ResolvePeer(jobs.WaitForEvent("metrics")->value("address", ""));
  ASSERT_TRUE(port.ok());
  EXPECT_TRUE(Eventually([&] { return health::Get(*port, "/readyz").code == 200; }));
  EXPECT_EQ(health::Get(*port, "/healthz").code, 200);
  const health::ExpositionReader page(health::Get(*port, "/metrics").body);
  ASSERT_EQ(page.error, "");
  EXPECT_GE(page.Value("longhaul_server_rounds_total", {{"job", "a"}}).value_or(-1), 1);
  EXPECT_EQ(page.Value("longhaul_server_joined", {{"job", "b"}}), 2);
  EXPECT_EQ(page.Value("longhaul_server_joined", {{"job", "c"}}), 0);
  EXPECT_EQ(page.Value("longhaul_member_joined", {{"job", "b"}, {"rank", "1"}, {"site", "site1"}}), 1);
  EXPECT_EQ(page.Value("longhaul_job_up", {{"job", "c"}}), 1);
  EXPECT_THAT(jobs.Errors(), ::testing::Not(HasSubstr("not confined")));

  jobs.Signal(SIGTERM);
  ExpectEnd(jobs, 0);
  for (Program* worker : workers) EXPECT_TRUE(worker->WaitForEnd()) << worker->Everything();
  for (const char* job : {"a", "b", "c"})
    EXPECT_EQ(WaitFor(jobs, job, "ended").value("exit_code", -1), 0) << jobs.Everything();
  EXPECT_TRUE(Of(jobs, "a", "checkpoint")) << "the last one, in order";
  EXPECT_TRUE(Of(jobs, "b", "checkpoint"));
}

TEST_F(JobsTest, AreHandedOverAllOrNone) {
  const auto file = [&](const std::map<std::string, std::string>& more) {
    std::string text = Common();
    for (const auto& [job, lines] : more) text += Section(job, lines);
    return text;
  };
  const std::string log = "round-log = true\n";
  Program& mixed = StartJobs(file({{"a", log}, {"b", ""}}));
  WaitFor(mixed, "a", "listening");
  WaitFor(mixed, "b", "listening");
  mixed.Signal(SIGUSR2);
  EXPECT_TRUE(mixed.WaitForError("nothing is handed over: job b: 'round_log' is off")) << mixed.Everything();
  mixed.Signal(SIGKILL);
  ASSERT_TRUE(mixed.WaitForEnd());
  Program& first = StartJobs(file({{"a", log}, {"b", log}}));
  std::map<std::string, std::string> logged;  // the same jobs, at the ports that they have
  std::vector<Program*> workers;              // whose 30 rounds take 2.4 s at least
  for (const std::string job : {"a", "b"}) {
    const std::string at = WaitFor(first, job, "listening").value("address", "");
    logged[job] = log + "listen = \"" + at + "\"\n";
    for (uint32_t rank : {0, 1})
      workers.push_back(&Worker(at, job, rank, {{"--fault", "delay=40ms"}, {"--reconnect-timeout", "60"}}));
  }
  WaitFor(first, "a", "round");
  WaitFor(first, "b", "round");
  first.Signal(SIGUSR2);
  ExpectEnd(first, 0);
  Program& second = StartJobs(file(logged));
  for (Program* worker : workers) ExpectEnd(*worker, 0);
  ExpectEnd(second, 0);
  EXPECT_EQ(Learned("a"), Learned("b"));
}

TEST_F(JobsTest, AHangUpStartsJobsEndsJobsAndRereadsKeys) {
  const std::string path = directory() + "/jobs.toml";
  for (const char* name : {"old", "new"}) {
    const auto key = crypto::NewPsk("a");
    ASSERT_TRUE(key.ok() && keys::WriteKeyFile(directory() + "/" + name, key->text()).ok());
  }
  const std::string all = "workers = 2\nlisten = \"127.0.0.1:0\"\nhigh-share = 1\n";
  const std::string key = "key = \"" + directory() + "/old\"\n";
  const std::string next = "next-key = \"" + directory() + "/new\"\n";
  Program& jobs = StartJobs(all + Section("a", key) + Section("b", "insecure = true\n"));
  const std::string a = WaitFor(jobs, "a", "listening").value("address", "");
  const std::string b = WaitFor(jobs, "b", "listening").value("address", "");
  std::vector<Program*> leaving;
  for (uint32_t rank : {0, 1}) leaving.push_back(&Worker(b, "b", rank, {{"--rounds", "1000000"}}));
  WaitFor(jobs, "b", "round");

  const std::string now =
      all + Section("a", key + next + "min-workers = 1\n") + Section("c", "insecure = true\nonce = true\n");
  std::ofstream(path) << now << "[job.d]\nworkers = 5000\n";
  jobs.Signal(SIGHUP);
  EXPECT_TRUE(jobs.WaitForError("SIGHUP: nothing is reloaded: jobs file " + path +
                                ", line 14: job d: --workers: Value 5000 not in range"))
      << jobs.Everything();
  EXPECT_FALSE(Of(jobs, "b", "ended"));

  std::ofstream(path) << now;
  jobs.Signal(SIGHUP);
  EXPECT_EQ(WaitFor(jobs, "b", "ended").value("exit_code", -1), 0);
  EXPECT_TRUE(Of(jobs, "b", "checkpoint")) << "the last one, in order";
  for (Program* worker : leaving) {
    ExpectEnd(*worker, 1);
    EXPECT_THAT(worker->Errors(), HasSubstr("shutting down"));
  }
  EXPECT_TRUE(jobs.WaitForError("job a: SIGHUP: min-workers has changed in the file")) << jobs.Everything();
  EXPECT_TRUE(jobs.WaitForError("job a: SIGHUP: reloaded key, next-key and allow")) << jobs.Everything();
  const std::string c = WaitFor(jobs, "c", "listening").value("address", "");
  std::vector<Program*> workers;
  for (uint32_t rank : {0, 1}) {
    const std::string one = directory() + (rank == 0 ? "/old" : "/new");
    workers.push_back(&StartWorker(
        rank, {{"--join", a}, {"--job", "a"}, {"--key", one}, {"--rounds", std::to_string(kRounds)}}));
    workers.push_back(&Worker(c, "c", rank));
  }
  for (Program* worker : workers) ExpectEnd(*worker, 0);
  EXPECT_EQ(WaitFor(jobs, "c", "ended").value("exit_code", -1), 0) << "its once is its own";
  EXPECT_THAT(jobs.Errors(), ::testing::Not(HasSubstr("not confined")));
  jobs.Signal(SIGTERM);
  ExpectEnd(jobs, 0);
}

// full's disk takes nothing, the process' output and a page of metrics are not read, and others want the
// processors: what each job learns is the same.
TEST_F(JobsTest, AFullDiskOutputThatIsNotReadAndABusyHostStopNoJob) {
  std::filesystem::create_directory(directory() + "/full");
  if (::mount("none", (directory() + "/full").c_str(), "tmpfs", 0, "size=64k") != 0)
    GTEST_SKIP() << "no right to mount";
  const FullPipe pipe;
  std::map<std::string, std::string> at;
  std::string text = Common() + "checkpoint-every = 5\n";
  text.replace(text.find("listen = \"127.0.0.1:0\"\n"), 23, "");
  for (const std::string job : {"full", "b", "c"}) {
    at[job] = UdpPeer().address();
    text += Section(job, "listen = \"" + at[job] + "\"\njson = \"" + directory() + "/" + job + ".json\"\n");
  }
  std::ofstream(directory() + "/jobs.toml") << text;
  const std::string page = UdpPeer().address();
  Program& jobs = Start(
      "longhaul-server",
      {"--jobs", directory() + "/jobs.toml", "--progress", "json", "--log-level", "debug", "--metrics", page},
      pipe.TakesOutput());
  std::atomic<bool> over{false};
  std::vector<std::thread> busy;
  for (unsigned i = 0; i <= std::thread::hardware_concurrency(); ++i) {
    busy.emplace_back([&over] {
      while (!over) {
      }
    });
  }
  std::vector<Program*> workers;
  for (const auto& [job, address] : at)
    for (uint32_t rank : {0, 1}) workers.push_back(&Worker(address, job, rank));
  EXPECT_TRUE(Eventually([&] { return health::TcpPeer(*udp::ResolvePeer(page)).ok(); }));
  std::deque<health::TcpPeer> readers;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back(*udp::ResolvePeer(page), 1);
    for (int pages = 0; pages < 20; ++pages) readers.back().Send("GET /metrics HTTP/1.1\r\n\r\n");
  }
  for (Program* worker : workers) ExpectEnd(*worker, 0);
  ExpectEnd(jobs, 0);
  over = true;
  for (std::thread& thread : busy) thread.join();
  ::umount2((directory() + "/full").c_str(), MNT_DETACH);
  for (const auto& [job, address] : at) {
    const auto summary = nlohmann::json::parse(ReadFile(directory() + "/" + job + ".json"), nullptr, false);
    ASSERT_TRUE(summary.is_object()) << job;
    EXPECT_EQ(summary.value("event", ""), "finished") << job;
    EXPECT_EQ(summary.value("rounds", 0), kRounds) << job;
    EXPECT_EQ(summary.value("checkpoints_failed", 0) > 0, job == "full") << job;
  }
  EXPECT_EQ(Learned("b"), Learned("c"));
}

TEST_F(JobsTest, NothingStartsFromAFileThatIsWrong) {
  Program& twice =
      StartJobs(Common() + Section("a") + "[job.b]\ncheckpoint-dir = \"" + directory() + "/a\"\n");
  ExpectEnd(twice, 2);
  EXPECT_TRUE(
      twice.WaitForError("line 11: job b: checkpoint-dir " + directory() + "/a is job a's already (line 9)"))
      << twice.Everything();
  EXPECT_FALSE(std::filesystem::exists(directory() + "/a"));
  Program& flag = StartJobs(Common() + Section("a"), {"--workers", "2"});
  ExpectEnd(flag, 2);
  EXPECT_TRUE(flag.WaitForError("--workers is a job's")) << flag.Everything();
}

}  // namespace
}  // namespace longhaul::e2e
