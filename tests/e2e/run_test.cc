// `longhaul run`: one command, all the processes and the WAN; and nothing is left of either, however it ends.
//
//   site A: server ══ WAN (namespaces with TUN, or loopback with injected faults) ══ site B, C, ...: workers, or with
//                                                                                    --offload one longhaul-offload each
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <set>
#include <sstream>

#include "tests/e2e/support/job.h"
#include "wan/tun/namespaces.h"
#include "wan/tun/tun_device.h"

namespace longhaul::e2e {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uid_t kNobody = 65534;

// Why no TUN link can be made here; empty when it can.
std::string WhyNoTun() {
  if (geteuid() != 0) return "network namespaces need root";
  if (const Status s = wan::TunDevice::Probe("/dev/net/tun"); !s.ok()) return s.message();
  const std::string probe = "/tmp/longhaul-e2e-probe-" + std::to_string(getpid());
  if (const Status s = wan::CreateNamespace(probe); !s.ok()) return s.message();
  const Status removed = wan::RemoveNamespace(probe);
  return removed.ok() ? "" : removed.message();
}

// Of the run with this process ID, as `ip netns list` would show them.
int NamespacesOf(pid_t pid) {
  int count = 0;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/run/netns", none)) {
    const std::string name = entry.path().filename().string();
    count += name.starts_with("lh-") && name.ends_with("-" + std::to_string(pid));
  }
  return count;
}

int BecomeNobody() {
  if (setgroups(0, nullptr) != 0 || setgid(kNobody) != 0 || setuid(kNobody) != 0) return -1;
  return prctl(PR_SET_PDEATHSIG, SIGTERM);  // a change of user forgets it
}

class RunTest : public JobTest {
 protected:
  static bool SkippedFor(const std::string& why) {
    if (why.empty()) return false;
    std::cerr << "\n*** NOT TESTED: " << why << " ***\n\n";
    return true;
  }

  Program& StartRun(const Flags& more, const std::function<int()>& before_exec = {}) {
    Flags flags =
        Merged({{"--data", dataset()}, {"--json", JsonFile()}, {"--logs", directory() + "/logs"}}, more);
    if (!flags.contains("--sites")) flags.insert({"--workers", "2"});
    std::vector<std::string> words = {"run"};
    for (const auto& [flag, value] : flags) {
      words.push_back(flag);
      if (!value.empty()) words.push_back(value);
    }
    return Start("longhaul", words, before_exec);
  }
  std::string JsonFile() const { return directory() + "/run.json"; }
  json Summary() const {
    const json summary = json::parse(ReadFile(JsonFile()), nullptr, false);
    EXPECT_TRUE(summary.is_object()) << ReadFile(JsonFile());
    return summary;
  }
};

TEST_F(RunTest, OnLoopbackItTrainsAndReportsEveryNumber) {
  Program& run = StartRun({{"--wan", "loopback"}, {"--rounds", "30"}, {"--delay", "5ms"}, {"--batch", "16"}});
  ExpectEnd(run, 0);
  EXPECT_THAT(run.Output(), AllOf(HasSubstr("round 30/30"), HasSubstr("accuracy"), HasSubstr("loopback"),
                                  HasSubstr("traffic is encrypted")));
  const json summary = Summary();
  for (const char* key : {"accuracy", "rounds", "seconds", "workers", "bytes_up", "bytes_down",
                          "observed_loss", "repaired_chunks", "filled_chunks", "retransmissions",
                          "round_ms_p50", "round_ms_p99", "link_drops", "training_loss", "seed"}) {
    EXPECT_TRUE(summary.contains(key) && summary[key].is_number()) << key << " in " << summary.dump(2);
  }
  EXPECT_EQ(summary.value("ok", false), true);
  EXPECT_EQ(summary.value("rounds", 0), 30);
  EXPECT_EQ(summary.value("workers", 0), 2);
  EXPECT_GT(summary.value("accuracy", 0.0), 0.5);
  EXPECT_GT(summary.value("training_loss", 0.0), 0);
  EXPECT_GT(summary.value("seconds", 0.0), 0.3) << "30 rounds of 10 ms round-trip time";
  EXPECT_GT(summary.value("bytes_up", 0.0), 2 * 30 * 100'000.0);
  EXPECT_GT(summary.value("bytes_down", 0.0), 2 * 30 * 100'000.0);
  EXPECT_GE(summary.value("round_ms_p99", 0.0), summary.value("round_ms_p50", 1e9));
  EXPECT_GE(summary.value("round_ms_p50", 0.0), 5);
  EXPECT_GT(summary.value("retransmissions", 0.0) + summary.value("repaired_chunks", 0.0), 0) << "2 % loss";
}

// The two of the demo, smaller. Everything arrives, however busy the machine is: bytes can be compared.
TEST_F(RunTest, WithOffloadASiteCostsTheBytesOfOneWorker) {
  constexpr int kSites = 2, kRanks = 4, kRounds = 20;
  json summary[2];
  for (const bool offload : {false, true}) {
    const std::string logs = directory() + (offload ? "/offload-logs" : "/logs");
    Flags flags = {{"--wan", "loopback"},
                   {"--sites", std::to_string(kSites)},
                   {"--ranks", std::to_string(kRanks)},
                   {"--rounds", std::to_string(kRounds)},
                   {"--delay", "5ms"},
                   {"--batch", "16"},
                   {"--high-share", "1"},
                   {"--rate-controller", "cubic"},
                   {"--logs", logs}};
    if (offload) flags.insert({"--offload", ""});
    Program& run = StartRun(flags);
    ExpectEnd(run, 0, 2 * kPatience);
    summary[offload] = Summary();
    EXPECT_EQ(summary[offload].value("ok", false), true);
    EXPECT_EQ(summary[offload].value("offload", !offload), offload);
    EXPECT_EQ(summary[offload].value("sites", 0), kSites);
    EXPECT_EQ(summary[offload].value("ranks", 0), kRanks);
    EXPECT_EQ(summary[offload].value("workers", 0), kSites * kRanks);
    EXPECT_EQ(summary[offload].value("rounds", 0), kRounds);
    EXPECT_GT(summary[offload].value("accuracy", 0.0), 0.5) << "chance is 0.1";
    EXPECT_GE(summary[offload].value("seconds_p50", 0.0), 0.01) << "a round trip";
    EXPECT_GT(summary[offload].value("rtt_ms", 0.0), 9) << summary[offload].dump(2);
    EXPECT_GT(summary[offload].value("retransmissions", 0.0) + summary[offload].value("repaired_chunks", 0.0),
              0)
        << "2 % loss";
    EXPECT_EQ(summary[offload]["asked"]["connections"], (json{"--rate-controller", "cubic"}));
    EXPECT_EQ(std::filesystem::exists(logs + "/offloadC.log"), offload);
    EXPECT_TRUE(std::filesystem::exists(logs + "/worker7.log"));
    EXPECT_FALSE(std::filesystem::exists(logs + "/siteB.sock"));
  }
  for (const char* key : {"wan_bytes_up", "wan_bytes_down"}) {
    const double alone = summary[0].value(key, 0.0), offload = summary[1].value(key, 1e18);
    std::cout << key << ": " << offload << " with offload, " << alone << " without\n";
    EXPECT_GT(offload, kSites * kRounds * 100'000.0);
    EXPECT_LE(offload, (1.0 / kRanks + 0.03) * alone);
  }
}

TEST_F(RunTest, OffloadAloneIsOneSite) {
  Program& run = StartRun(
      {{"--wan", "loopback"}, {"--offload", ""}, {"--rounds", "3"}, {"--delay", "1ms"}, {"--batch", "16"}});
  ExpectEnd(run, 0);
  EXPECT_THAT(run.Output(), HasSubstr("2 workers in site B, added up by a longhaul-offload"));
  EXPECT_EQ(Summary().value("sites", 0), 1);
  EXPECT_EQ(Summary().value("workers", 0), 2);
  EXPECT_THAT(ReadFile(directory() + "/logs/offloadB.log"),
              HasSubstr("the site is member 0 of 1, with 2 ranks"));
}

TEST_F(RunTest, HandsOnWhatIsForTheServerAndTheWorkers) {
  Program& run = StartRun({{"--wan", "loopback"},
                           {"--rounds", "20"},
                           {"--delay", "1ms"},
                           {"--batch", "16"},
                           {"--wire-dtype", "int8"},
                           {"--priority", "layer"},
                           {"--norm-guard", "1000"},
                           {"--deterministic", ""}});
  ExpectEnd(run, 0);
  const json summary = Summary();
  EXPECT_LT(summary.value("chunk_bytes_up", 1e9), 0.4 * 2 * 20 * 400'000) << "a quarter, and initial values";
  EXPECT_GT(summary.value("chunk_bytes_up", 0.0), 0.2 * 2 * 20 * 400'000);
  EXPECT_EQ(summary["asked"]["workers"], (json{"--batch", "16", "--wire-dtype", "int8"}));
  EXPECT_EQ(summary["asked"]["server"].size(), 5u) << summary["asked"].dump();
  EXPECT_GT(summary.value("accuracy", 0.0), 0.5);
}

// Those that no other job here uses, all at once.
TEST_F(RunTest, TrainsWithTheLessUsualSettings) {
  Program& run = StartRun({{"--wan", "loopback"},
                           {"--rounds", "20"},
                           {"--delay", "1ms"},
                           {"--batch", "16"},
                           {"--policy", "shift"},
                           {"--shift-alpha", "0.2"},
                           {"--close-ratio", "0.8"},
                           {"--straggler-factor", "1000"},
                           {"--round-bound", "60"},  // a busy host is no straggler
                           {"--local-steps", "2"},
                           {"--local-optimizer", "adamw:lr=0.001"},
                           {"--optimizer", "sgd:lr=0.7,momentum=0.9,nesterov"},
                           {"--skew", "0.5"},
                           {"--constant-lr", ""}});
  ExpectEnd(run, 0);
  EXPECT_GT(Summary().value("accuracy", 0.0), 0.5) << "chance is 0.1";
  const std::string worker = ReadFile(directory() + "/logs/worker0.log");
  EXPECT_EQ(worker.find("rror"), std::string::npos) << worker;
}

// Every learning setting of the daemons can be given to `run`: what it does not hand on is what it decides
// itself.
TEST_F(RunTest, KnowsTheDaemonsSettings) {
  const auto flags = [&](const std::vector<std::string>& words) {
    Program& program = Start(words[0], {words.begin() + 1, words.end()});
    ExpectEnd(program, 0);
    std::set<std::string> found;
    std::istringstream text(program.Output());
    for (std::string word; text >> word;) {
      if (word.starts_with("--")) found.insert(word.substr(0, word.find_first_of(",.;:)]")));
    }
    return found;
  };
  const std::set<std::string> run = flags({"longhaul", "run", "--help"});
  const std::set<std::string> own = {
      "--help", "--version", "--config", "--listen", "--join",
      "--server",  // in a help text
      "--site-rank", "--job", "--rank", "--world-size", "--site", "--incarnation", "--weight",
      "--idle-timeout", "--connect-timeout", "--wait-timeout", "--datagram-size", "--max-model-bytes",
      "--max-memory-bytes", "--max-half-open", "--half-open-timeout", "--max-load-generators",
      "--bench-during-job", "--once", "--insecure-bind", "--allow", "--next-key", "--server-name",
      "--allow-core-dump", "--no-seccomp", "--fault", "--inject", "--progress", "--log-level", "--eval-every",
      "--capacity-floor", "--capacity-cap", "--worker-rate-cap", "--worker-rate-floor", "--rate-cap",
      "--rate-floor",
      // Of jobs that outlive a process, and of daemons that are watched.
      "--checkpoint-dir", "--checkpoint-every", "--checkpoint-keep", "--round-log", "--reconnect-timeout",
      "--metrics",
      // Of jobs of several servers, which it does not start.
      "--servers", "--first-server", "--advertise",
      // Workers that come later, and several jobs: docs/howto.
      "--start-workers", "--min-incarnation", "--jobs", "--share", "--state-dir", "--state-every",
      // Programs of the user's, behind --.
      "--", "--ranks", "--restarts", "--hostfile", "--host"};
  for (const std::string program : {"longhaul-server", "longhaul-worker", "longhaul-trainer"}) {
    for (const std::string& flag : flags({program, "--help"})) {
      EXPECT_TRUE(run.contains(flag) || own.contains(flag)) << program << " " << flag;
    }
  }
}

TEST_F(RunTest, TrainsOnTheRealDataset) {
  const std::string real = "/usr/share/datasets/fashion-mnist";
  if (SkippedFor(std::filesystem::exists(real) ? "" : real + " is missing")) {
    GTEST_SKIP() << "the Debian package dataset-fashion-mnist is not installed";
  }
  Program& run = StartRun({{"--wan", "loopback"}, {"--rounds", "60"}, {"--delay", "1ms"}, {"--data", real}});
  ExpectEnd(run, 0);
  EXPECT_GT(Summary().value("accuracy", 0.0), 0.7) << "chance is 0.1";
}

TEST_F(RunTest, AnAccuracyBelowTheOneAskedForIsAFailure) {
  Program& run = StartRun({{"--wan", "loopback"},
                           {"--rounds", "1"},
                           {"--delay", "1ms"},
                           {"--batch", "1"},
                           {"--min-accuracy", "1.0"}});
  ExpectEnd(run, 1);
  EXPECT_THAT(run.Errors(), HasSubstr("--min-accuracy"));
}

TEST_F(RunTest, AcrossTunTheLinksReallyDropAndNoNamespaceIsLeft) {
  if (SkippedFor(WhyNoTun())) GTEST_SKIP() << WhyNoTun();
  Program& run = StartRun({{"--wan", "tun"}, {"--rounds", "20"}, {"--loss", "2%"}, {"--delay", "5ms"}});
  ExpectEnd(run, 0);
  EXPECT_EQ(NamespacesOf(run.pid()), 0);
  const json summary = Summary();
  ASSERT_EQ(summary["links"].size(), 2u) << summary.dump(2);
  for (const json& link : summary["links"]) {
    EXPECT_GT(link.value("dropped_loss", 0), 0) << link.dump();
    EXPECT_GT(link.value("loss", 0.0), 0.01) << link.dump();
    EXPECT_LT(link.value("loss", 1.0), 0.20) << link.dump();
  }
  EXPECT_GT(summary.value("link_drops", 0), 0);
  EXPECT_GT(summary.value("observed_loss", -1.0) + summary.value("repaired_chunks", 0.0), 0);
}

// Every site has a link of its own; its bytes are those of all its ranks.
TEST_F(RunTest, AcrossTunEverySiteHasItsLink) {
  if (SkippedFor(WhyNoTun())) GTEST_SKIP() << WhyNoTun();
  Program& run = StartRun({{"--wan", "tun"},
                           {"--sites", "2"},
                           {"--ranks", "2"},
                           {"--offload", ""},
                           {"--rounds", "10"},
                           {"--delay", "5ms"},
                           {"--batch", "16"}});
  ExpectEnd(run, 0);
  EXPECT_EQ(NamespacesOf(run.pid()), 0);
  const json summary = Summary();
  std::map<std::string, double> bytes;
  for (const json& link : summary["links"]) {
    bytes[link.value("from", "") + link.value("to", "")] = link.value("bytes", 0.0);
  }
  ASSERT_EQ(bytes.size(), 4u) << summary["links"].dump(2);
  for (const char* link : {"AB", "BA", "AC", "CA"}) EXPECT_GT(bytes[link], 10 * 100'000.0) << link;
  EXPECT_EQ(summary.value("wan_bytes_up", 0.0), bytes["BA"] + bytes["CA"]);
  EXPECT_EQ(summary.value("wan_bytes_down", 0.0), bytes["AB"] + bytes["AC"]);
}

TEST_F(RunTest, WithoutRightsItFallsBackToLoopbackAndSaysSo) {
  if (SkippedFor(geteuid() == 0 ? "" : "becoming another user needs root")) GTEST_SKIP() << "not root";
  if (::chmod(dataset().c_str(), 0755) != 0) FAIL();
  // Whether nobody may read our programs is not ours to decide.
  Program& probe = Start("longhaul", {"--version"}, BecomeNobody);
  if (probe.WaitForEnd() != 0) {
    ASSERT_TRUE(SkippedFor("the user nobody may not execute " LONGHAUL_PROGRAMS "/longhaul"));
    GTEST_SKIP() << probe.Everything();
  }
  if (::access("/dev/net/tun", F_OK) == 0 && [] {
        struct stat status {};
        return ::stat("/dev/net/tun", &status) == 0 && (status.st_mode & 06) == 06;
      }()) {
    ASSERT_TRUE(SkippedFor("everybody may use /dev/net/tun here"));
    GTEST_SKIP() << "so nothing needs to fall back";
  }
  Program& run =
      StartRun({{"--wan", "auto"}, {"--rounds", "5"}, {"--workers", "1"}, {"--delay", "1ms"}}, BecomeNobody);
  ExpectEnd(run, 0);
  EXPECT_THAT(run.Output(),
              AllOf(HasSubstr("loopback"), HasSubstr("no network namespaces"), HasSubstr("/dev/net/tun")));
  EXPECT_EQ(Summary().value("rounds", 0), 5);
}

TEST_F(RunTest, WithoutRightsTunIsAClearError) {
  if (SkippedFor(geteuid() == 0 ? "" : "becoming another user needs root")) GTEST_SKIP() << "not root";
  Program& probe = Start("longhaul", {"--version"}, BecomeNobody);
  if (probe.WaitForEnd() != 0) GTEST_SKIP() << "the user nobody may not execute our programs";
  Program& run = StartRun({{"--wan", "tun"}, {"--rounds", "5"}, {"--workers", "1"}}, BecomeNobody);
  const auto code = run.WaitForEnd();
  if (code == 0) GTEST_SKIP() << "everybody may use /dev/net/tun here";
  EXPECT_EQ(code, 1) << run.Everything();
  EXPECT_THAT(run.Errors(), HasSubstr("/dev/net/tun"));
}

// The unhappy ends, with either kind of WAN, and with a site that is one member.
class RunEnds : public RunTest, public ::testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    RunTest::SetUp();
    if (GetParam() != "tun") return;
    const std::string why = WhyNoTun();
    if (SkippedFor(why)) GTEST_SKIP() << why;
  }

  bool offload() const { return GetParam() == "offload"; }

  // A run in the middle of its training, with all its processes.
  Program& StartLongRun() {
    Flags flags = {{"--wan", offload() ? "loopback" : GetParam()},
                   {"--rounds", "1000000"},
                   {"--delay", "5ms"},
                   {"--lr", "0.001"}};
    if (offload()) flags.insert({"--offload", ""});
    Program& run = StartRun(flags);
    EXPECT_TRUE(Eventually([&] { return Children(run, "longhaul-trainer").size() == 2 || !run.running(); }));
    // Progress of a run that is no terminal comes every 3 s.
    EXPECT_TRUE(Eventually([&] {
      const std::string output = run.Output();
      const size_t round = output.rfind("] round ");
      return !run.running() || (round != std::string::npos && output[round + 8] != '0');
    })) << run.Everything();
    EXPECT_TRUE(run.running());
    EXPECT_EQ(NamespacesOf(run.pid()), GetParam() == "tun" ? 2 : 0);
    return run;
  }

  static std::vector<pid_t> Children(const Program& run, const std::string& program) {
    std::vector<pid_t> found;
    for (const auto& [pid, start] : Descendants(run.pid())) {
      if (CommandLine(pid).find("/" + program + " ") != std::string::npos) found.push_back(pid);
    }
    return found;
  }

  // Within `limit` from now.
  static void ExpectNothingLeft(pid_t run, const std::map<pid_t, uint64_t>& processes, Duration limit) {
    EXPECT_TRUE(Eventually([&] { return CountAlive(processes) == 0 && NamespacesOf(run) == 0; }, limit));
    EXPECT_EQ(NamespacesOf(run), 0) << "namespaces are left";
    for (const auto& [pid, start] : processes) {
      EXPECT_EQ(CountAlive({{pid, start}}), 0u) << "still runs: " << CommandLine(pid);
    }
  }
};

TEST_P(RunEnds, CtrlCEndsEverythingWith130) {
  Program& run = StartLongRun();
  const auto processes = Descendants(run.pid());
  EXPECT_GE(processes.size(), 3u);
  const auto begin = Clock::now();
  run.Signal(SIGINT);
  ExpectEnd(run, 130);
  EXPECT_LT(SecondsFrom(begin, run.ended_at()), 5 * kSlowness);
  EXPECT_THAT(run.Errors(), HasSubstr("interrupted"));
  ExpectNothingLeft(run.pid(), processes, Duration(0));
}

// Not even a file of the job's key stays: with it, an attacker could read what was recorded of the run.
TEST_P(RunEnds, KillLeavesNothingWithinFiveSeconds) {
  const std::string temporary = directory() + "/tmp";
  ASSERT_TRUE(std::filesystem::create_directory(temporary));
  std::filesystem::permissions(temporary, std::filesystem::perms::all);
  ::setenv("TMPDIR", temporary.c_str(), 1);
  Program& run = StartLongRun();
  ::unsetenv("TMPDIR");
  EXPECT_THAT(run.Output(), HasSubstr("encrypted, by a key made for this run"));
  const auto processes = Descendants(run.pid());
  EXPECT_GE(processes.size(), 3u);
  run.Signal(SIGKILL);
  ExpectEnd(run, 128 + SIGKILL);
  ExpectNothingLeft(run.pid(), processes, seconds(5) * kSlowness);
  EXPECT_TRUE(std::filesystem::is_empty(temporary));
}

TEST_P(RunEnds, AKilledWorkerIsNamedAndNothingIsLeft) {
  Program& run = StartLongRun();
  const auto processes = Descendants(run.pid());
  const auto workers = Children(run, "longhaul-trainer");
  ASSERT_EQ(workers.size(), 2u);
  pid_t second = 0;
  for (const pid_t pid : workers) {
    const std::string variables = ReadFile("/proc/" + std::to_string(pid) + "/environ");
    if (variables.find(offload() ? "LONGHAUL_SITE_RANK=1" : "LONGHAUL_RANK=1") != std::string::npos)
      second = pid;
  }
  ASSERT_GT(second, 0);
  ::kill(second, SIGKILL);
  ExpectEnd(run, 1);
  EXPECT_THAT(run.Errors(), AllOf(HasSubstr("worker1"), HasSubstr("137"), HasSubstr("logs are in")));
  ExpectNothingLeft(run.pid(), processes, Duration(0));
  EXPECT_EQ(Summary().value("ok", true), false);
}

TEST_P(RunEnds, AKilledServerIsNamedAndNothingIsLeft) {
  Program& run = StartLongRun();
  const auto processes = Descendants(run.pid());
  const auto servers = Children(run, "longhaul-server");
  ASSERT_EQ(servers.size(), 1u);
  ::kill(servers.front(), SIGKILL);
  ExpectEnd(run, 1);
  EXPECT_THAT(run.Errors(), AllOf(HasSubstr("server"), HasSubstr("137")));
  ExpectNothingLeft(run.pid(), processes, Duration(0));
}

TEST_P(RunEnds, AKilledOffloadIsNamedAndNothingIsLeft) {
  if (!offload()) GTEST_SKIP() << "there is none";
  Program& run = StartLongRun();
  const auto processes = Descendants(run.pid());
  const auto offloads = Children(run, "longhaul-offload");
  ASSERT_EQ(offloads.size(), 1u);
  ::kill(offloads.front(), SIGKILL);
  ExpectEnd(run, 1);
  EXPECT_THAT(run.Errors(), AllOf(HasSubstr("offloadB"), HasSubstr("137")));
  ExpectNothingLeft(run.pid(), processes, Duration(0));
}

INSTANTIATE_TEST_SUITE_P(Wans, RunEnds, ::testing::Values("loopback", "tun", "offload"),
                         [](const auto& test) { return test.param; });

// A mistake that only the workers can find.
TEST_F(RunTest, AMissingDatasetIsNamed) {
  Program& run = StartRun({{"--wan", "loopback"}, {"--data", directory() + "/nothing"}});
  ExpectEnd(run, 1);
  EXPECT_THAT(run.Errors(), AllOf(HasSubstr("ended with code 3"), HasSubstr(directory() + "/nothing"),
                                  HasSubstr("dataset-fashion-mnist")));
}

}  // namespace
}  // namespace longhaul::e2e
