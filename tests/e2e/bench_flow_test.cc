// `longhaul bench flow` against a real server: what it measures, and every way in which it cannot.
#include <fstream>

#include "tests/e2e/support/job.h"
#include "tests/e2e/support/udp_peer.h"

namespace longhaul::e2e {
namespace {

using ::testing::HasSubstr;

class BenchFlow : public JobTest {
 protected:
  std::string json_file() const { return directory() + "/flow.json"; }
  Program& StartFlow(std::vector<std::string> more = {}, const std::string& to = "") {
    std::vector<std::string> arguments = {"bench",  "flow",      "--join", to.empty() ? address() : to,
                                          "--json", json_file(), "--key",  key_file()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Start("longhaul", arguments);
  }
  nlohmann::json Result() const { return nlohmann::json::parse(ReadFile(json_file())); }
};

// A fault injector in the generator makes a path of 40 Mbit/s with loss.
TEST_F(BenchFlow, ReportsWhatTheServerHasConfirmed) {
  StartServer();
  Program& flow = StartFlow({"--seconds", "3", "--bytes", "1mb", "--series", "0.2", "--fault",
                             "drop=0.02,delay=10ms,rate=40mbit,queue=50ms,seed=7"});
  ExpectEnd(flow, 0);
  EXPECT_THAT(flow.Errors(), HasSubstr("Mbit/s")) << "progress";
  const nlohmann::json r = Result();
  for (const char* key :
       {"goodput_mbps", "rtt_ms_p50", "rtt_ms_p99", "queue_ms_p50", "loss", "retransmissions", "limiter",
        "fit", "bytes", "seconds", "controller", "packets_sent", "repairs_sent", "chunks_repaired",
        "packets_spurious", "datagram_bytes", "series", "outcome"}) {
    EXPECT_TRUE(r.contains(key)) << key;
  }
  for (const char* key : {"l0", "capacity_mbps", "target", "r2", "n", "state"}) {
    EXPECT_TRUE(r["fit"].contains(key)) << key;
  }
  double shares = 0;
  for (const auto& [name, share] : r["limiter"].items()) shares += share.get<double>();
  EXPECT_NEAR(shares, 1, 1e-6);
  EXPECT_GT(r["goodput_mbps"], 1.0);
  EXPECT_LT(r["goodput_mbps"], 40.0);
  EXPECT_GE(r["rtt_ms_p50"], 20.0);
  EXPECT_GT(r["retransmissions"].get<int>() + r["chunks_repaired"].get<int>(), 0);
  EXPECT_GE(r["series"].size(), 10u);
  EXPECT_EQ(r["outcome"], "Ok");
  EXPECT_EQ(r["security"], "tls-psk");
  EXPECT_TRUE(server().WaitForLine("\"ended\":true"));
}

TEST_F(BenchFlow, InterruptedItWritesWhatItHas) {
  StartServer();
  Program& flow = StartFlow({"--seconds", "600", "--rate-cap", "20mbit"});
  ASSERT_TRUE(server().WaitForEvent("bench"));
  Pause(milliseconds(1200));
  flow.Signal(SIGINT);
  ExpectEnd(flow, 130);
  EXPECT_GT(Result()["bytes"], 0);
  EXPECT_EQ(Result()["outcome"], "Cancelled");
}

TEST_F(BenchFlow, SaysWhenNobodyIsThere) {
  const UdpPeer mute;
  Program& flow = StartFlow({"--connect-timeout", "1"}, mute.address());
  ExpectEnd(flow, 3);
  EXPECT_THAT(flow.Errors(), HasSubstr("no answer from server " + mute.address()));
  EXPECT_EQ(Result()["outcome"], "Unavailable");
}

TEST_F(BenchFlow, SaysWhenTheServerTakesNone) {
  StartServer({{"--max-load-generators", "0"}});
  Program& flow = StartFlow();
  ExpectEnd(flow, 3);
  EXPECT_THAT(flow.Errors(), HasSubstr("--max-load-generators 0"));
}

TEST_F(BenchFlow, SaysThatTheServerHasDiedAndKeepsTheResult) {
  StartServer();
  Program& flow = StartFlow({"--seconds", "600", "--rate-cap", "20mbit", "--idle-timeout", "1"});
  ASSERT_TRUE(server().WaitForEvent("bench"));
  Pause(milliseconds(1000));
  server().Signal(SIGKILL);
  ExpectEnd(flow, 1);
  EXPECT_THAT(flow.Errors(), HasSubstr("was silent for 1.0 s"));
  EXPECT_EQ(Result()["outcome"], "PeerDead");
  EXPECT_GT(Result()["bytes"], 0);
}

TEST_F(BenchFlow, IsRefusedWhileAJobIsRunningWhichFinishes) {
  StartRunningJob();
  Program& flow = StartFlow();
  ExpectEnd(flow, 3);
  EXPECT_THAT(flow.Errors(), HasSubstr("a job is running"));
  ExpectRunningJobFinishes();
}

}  // namespace
}  // namespace longhaul::e2e
