// `longhaul bench rounds`: what it measures, with a given server and with its own, and every way in which
// it cannot.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <sstream>

#include "tests/e2e/support/job.h"
#include "tests/e2e/support/udp_peer.h"

namespace longhaul::e2e {
namespace {

using ::testing::HasSubstr;

class BenchRounds : public JobTest {
 protected:
  std::string json_file() const { return directory() + "/rounds.json"; }
  Program& StartRounds(std::vector<std::string> more) {
    std::vector<std::string> arguments = {"bench", "rounds", "--json", json_file(), "--key", key_file()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Start("longhaul", arguments);
  }
  nlohmann::json Result() const { return nlohmann::json::parse(ReadFile(json_file())); }
  // Sum over the server's events of rounds first..last.
  uint64_t SumOfRounds(const std::string& key, uint64_t first, uint64_t last) {
    uint64_t sum = 0;
    std::istringstream lines(server().Output());
    for (std::string line; std::getline(lines, line);) {
      const nlohmann::json event = nlohmann::json::parse(line, nullptr, false);
      if (!event.is_object() || event.value("event", "") != "round") continue;
      const auto round = event["round"].get<uint64_t>();
      if (round >= first && round <= last) sum += event[key].get<uint64_t>();
    }
    return sum;
  }
};

// What the figures are of one another, whatever they are.
void ExpectConsistent(const nlohmann::json& r) {
  std::vector<double> seconds = r["seconds"];
  ASSERT_EQ(seconds.size(), r["rounds"]);
  std::sort(seconds.begin(), seconds.end());
  const auto at = [&](double share) {
    return seconds[static_cast<size_t>(std::ceil(share * static_cast<double>(seconds.size()))) - 1];
  };
  EXPECT_EQ(r["seconds_p50"], at(0.5));
  EXPECT_EQ(r["seconds_p99"], at(0.99));
  EXPECT_EQ(r["seconds_max"], seconds.back());
  const double all = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  const double bits =
      8 * r["bytes"].get<double>() * r["workers_here"].get<double>() * r["rounds"].get<double>();
  EXPECT_NEAR(r["goodput_mbps"].get<double>(), bits / all / 1e6, 1e-6 * r["goodput_mbps"].get<double>());
}

TEST_F(BenchRounds, ReportsTheRoundsOfTwoWorkersOverALossyPath) {
  // Without a threshold the policy fills whatever is lost.
  StartServer({{"--workers", "2"}, {"--policy", "count"}, {"--bubble-threshold", "0"}});
  Program& rounds = StartRounds(
      {"--join",       address(), "--workers", "2",
       "--bytes",      "200kb",   "--tensors", "2",
       "--rounds",     "30",      "--warmup",  "5",
       "--gap",        "20ms",    "--seed",    "3",
       "--high-share", "0.5",     "--fault",   "drop=0.1,delay=10ms,rate=40mbit,queue=50ms,seed=7"});
  ExpectEnd(rounds, 0);
  EXPECT_THAT(rounds.Errors(), HasSubstr("30 rounds: p50"));
  const nlohmann::json r = Result();
  for (const char* key : {"seconds_p50", "seconds_p99", "seconds_max", "rounds", "goodput_mbps",
                          "lost_chunks", "repaired_chunks", "filled_chunks", "outcome"}) {
    EXPECT_TRUE(r.contains(key)) << key;
  }
  EXPECT_EQ(r["rounds"], 30);
  EXPECT_EQ(r["seconds"].size(), 30u);
  EXPECT_GE(r["seconds_p50"], 0.01) << "the way to the server is delayed";
  EXPECT_LE(r["seconds_p50"], r["seconds_p99"]);
  EXPECT_LE(r["seconds_p99"], r["seconds_max"]);
  EXPECT_EQ(r["bytes"], 200'000);
  EXPECT_EQ(r["workers_here"], 2);
  ExpectConsistent(r);
  EXPECT_EQ(r["outcome"], "Ok");
  ASSERT_TRUE(server().WaitForEvent("finished"));
  // Both ends count the same. The report of a round may come after the next one has begun.
  for (const char* key : {"lost_chunks", "repaired_chunks", "filled_chunks"}) {
    EXPECT_GT(r[key], 0) << key;
    EXPECT_GE(r[key], SumOfRounds(key, 5, 33)) << key;
    EXPECT_LE(r[key], SumOfRounds(key, 4, 34)) << key;
  }
  EXPECT_EQ(r["filled_chunks"], r["lost_chunks"]);
  // Of two workers' chunks, half of which may be lost, at a tenth.
  EXPECT_LT(r["lost_chunks"], 30 * 2 * 144 / 2 / 4);
}

TEST_F(BenchRounds, EveryWorkerMayBeAProcessOfItsOwn) {
  StartServer({{"--workers", "2"}});
  Program& other = Start("longhaul", {"bench", "rounds", "--key", key_file(), "--join", address(),
                                      "--workers", "2", "--rank", "1", "--bytes", "100kb", "--rounds", "5"});
  Program& rounds = StartRounds(
      {"--join", address(), "--workers", "2", "--rank", "0", "--bytes", "100kb", "--rounds", "5"});
  ExpectEnd(rounds, 0);
  ExpectEnd(other, 0);
  EXPECT_EQ(Result()["rounds"], 5);
  EXPECT_EQ(Result()["workers_here"], 1);
  ExpectConsistent(Result());
}

TEST_F(BenchRounds, BringsItsOwnServer) {
  Program& rounds =
      StartRounds({"--workers", "3", "--bytes", "100kb", "--rounds", "10", "--high-share", "1"});
  ExpectEnd(rounds, 0);
  EXPECT_EQ(Result()["rounds"], 10);
  ExpectConsistent(Result());
  for (const char* key : {"lost_chunks", "filled_chunks"}) {
    EXPECT_EQ(Result()[key], 0) << key << ": all of it is of the high class";
  }
}

TEST_F(BenchRounds, ShorterTypesSendFewerBytes) {
  Program& rounds = StartRounds({"--workers", "2", "--bytes", "400kb", "--rounds", "10", "--wire-dtype",
                                 "int8", "--result-dtype", "float16"});
  ExpectEnd(rounds, 0);
  EXPECT_EQ(Result()["wire_dtype"], "int8");
  EXPECT_EQ(Result()["result_dtype"], "float16");
  EXPECT_NEAR(Result()["chunk_bytes_sent"].get<double>(), 10 * 100e3, 5e4);
  EXPECT_NEAR(Result()["chunk_bytes_received"].get<double>(), 10 * 200e3, 5e4);
}

// The server says a fifth, and takes whatever classes its workers choose.
TEST_F(BenchRounds, ChoosesTheHighShareOfItsWorkersAlsoWithSomebodysServer) {
  StartServer({{"--workers", "2"}});
  const auto lost_with = [&](const std::string& flag, const std::string& share) {
    Program& rounds = StartRounds({"--join", address(), "--workers", "2", "--bytes", "200kb", "--rounds",
                                   "10", flag, share, "--seed", "3", "--fault", "drop=0.1,delay=5ms,seed=7"});
    ExpectEnd(rounds, 0);
    return Result()["lost_chunks"].get<int>();
  };
  EXPECT_EQ(lost_with("--high-share", "1"), 0);
  EXPECT_EQ(lost_with("--high-energy", "1"), 0);
  EXPECT_GT(lost_with("--high-share", "0"), 0);
}

TEST_F(BenchRounds, RefusesWhatOnlyTheServerDecides) {
  Program& rounds = StartRounds({"--join", "127.0.0.1:7700", "--close-ratio", "0.5"});
  ExpectEnd(rounds, 2);
  EXPECT_THAT(rounds.Errors(), HasSubstr("--close-ratio is the server's to decide"));
}

TEST_F(BenchRounds, RefusesARankThatDoesNotExist) {
  Program& rounds = StartRounds({"--join", "127.0.0.1:7700", "--workers", "2", "--rank", "2"});
  ExpectEnd(rounds, 2);
  EXPECT_THAT(rounds.Errors(), HasSubstr("--rank 2 is not below --workers 2"));
}

TEST_F(BenchRounds, InterruptedItWritesWhatItHas) {
  Program& rounds =
      StartRounds({"--workers", "2", "--bytes", "100kb", "--rounds", "100000", "--gap", "50ms"});
  ASSERT_TRUE(Eventually([&] { return rounds.Errors().find("last ") != std::string::npos; }));
  rounds.Signal(SIGINT);
  ExpectEnd(rounds, 130);
  EXPECT_GT(Result()["rounds"], 0);
  EXPECT_EQ(Result()["outcome"], "Cancelled");
}

TEST_F(BenchRounds, InterruptedInALongGapItWritesWhatItHas) {
  Program& rounds = StartRounds(
      {"--workers", "2", "--bytes", "100kb", "--rounds", "100000", "--warmup", "0", "--gap", "60s"});
  ASSERT_TRUE(Eventually([&] { return rounds.Errors().find("last ") != std::string::npos; }));
  rounds.Signal(SIGINT);
  ExpectEnd(rounds, 130);
  EXPECT_EQ(Result()["rounds"], 1);
}

TEST_F(BenchRounds, SaysWhenNobodyIsThere) {
  const UdpPeer mute;
  Program& rounds = StartRounds({"--join", mute.address(), "--workers", "2", "--connect-timeout", "1"});
  ExpectEnd(rounds, 3);
  EXPECT_THAT(rounds.Errors(), HasSubstr("no answer from server " + mute.address()));
  EXPECT_EQ(Result()["rounds"], 0);
}

TEST_F(BenchRounds, SaysThatTheServerHasDiedAndKeepsTheResult) {
  StartServer({{"--workers", "2"}});
  Program& rounds = StartRounds({"--join", address(), "--workers", "2", "--bytes", "100kb", "--rounds",
                                 "100000", "--gap", "20ms", "--idle-timeout", "1"});
  ASSERT_TRUE(Eventually([&] { return rounds.Errors().find("last ") != std::string::npos; }));
  server().Signal(SIGKILL);
  ExpectEnd(rounds, 1);
  EXPECT_THAT(rounds.Errors(), HasSubstr("was silent for"));
  EXPECT_GT(Result()["rounds"], 0);
}

}  // namespace
}  // namespace longhaul::e2e
