// The happy path, with real daemons:   worker 0 ─┐
//                                                ├─ loopback (perhaps with injected faults) ─ server
//                                      worker 1 ─┘
#include <cmath>

#include "tests/e2e/support/job.h"

namespace longhaul::e2e {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class Training : public JobTest {
 protected:
  std::string JsonFile(const std::string& of) const { return directory() + "/" + of + ".json"; }

  // Runs a job of two workers to its end; every process must be content. Returns them all.
  std::vector<Program*> Train(uint64_t rounds, const Flags& worker_flags, const Flags& server_flags = {}) {
    Program& server = StartServer(Merged({{"--once", ""}, {"--json", JsonFile("server")}}, server_flags));
    std::vector<Program*> workers;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      workers.push_back(&StartWorker(rank, Merged({{"--rounds", std::to_string(rounds)},
                                                   {"--json", JsonFile("worker" + std::to_string(rank))}},
                                                  worker_flags)));
    }
    for (Program* worker : workers) ExpectEnd(*worker, 0);
    ExpectEnd(server, 0);
    workers.push_back(&server);
    return workers;
  }

  json Summary(const std::string& of) const {
    const json summary = json::parse(ReadFile(JsonFile(of)), nullptr, false);
    EXPECT_TRUE(summary.is_object()) << of << ": " << ReadFile(JsonFile(of));
    return summary;
  }
};

TEST_F(Training, TwoWorkersOnLoopbackFinishAndReportJson) {
  Train(60, {}, {{"--max-model-bytes", "2mb"}});
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const json worker = Summary("worker" + std::to_string(rank));
    EXPECT_EQ(worker.value("rank", 99u), rank);
    EXPECT_EQ(worker.value("rounds", 0), 60);
    EXPECT_GT(worker.value("seconds", 0.0), 0);
    EXPECT_GE(worker.value("round_seconds_p99", 0.0), worker.value("round_seconds_p50", 1e9));
    EXPECT_GT(worker["totals"].value("bytes_sent", 0), 60 * 100'000) << "the model has 400 kB";
    EXPECT_GT(worker["totals"].value("bytes_received", 0), 60 * 100'000);
  }
  // Ten classes that are easy to tell apart; chance is 0.1.
  EXPECT_GT(Summary("worker0").value("accuracy", 0.0), 0.9);
  const json server = Summary("server");
  EXPECT_EQ(server.value("event", ""), "finished");
  EXPECT_EQ(server.value("workers", 0), 2);
  EXPECT_EQ(server.value("rounds", 0), 60);
  EXPECT_GT(server.value("bytes_up", 0), 2 * 60 * 100'000);
  EXPECT_EQ(server.value("duplicate_contributions", -1), 0);
}

TEST_F(Training, GoesOnThroughInjectedLossAndDelay) {
  Train(60, {{"--fault", "drop=0.05,delay=5ms,seed=7"}});
  const json worker = Summary("worker0");
  EXPECT_EQ(worker.value("rounds", 0), 60);
  EXPECT_GT(worker.value("accuracy", 0.0), 0.9);
  // 5 % of what it sent was dropped; acknowledgements and measurement leave room.
  EXPECT_GT(worker.value("observed_loss", 0.0), 0.02);
  EXPECT_LT(worker.value("observed_loss", 1.0), 0.10);
  EXPECT_GE(worker["totals"].value("min_rtt_ms", 0.0), 10.0) << "5 ms out and 5 ms in";
  const json server = Summary("server");
  EXPECT_GT(server.value("repaired_chunks", 0) + server.value("retransmissions", 0) +
                worker["totals"].value("retransmissions", 0),
            0);
  EXPECT_EQ(server.value("duplicate_contributions", -1), 0);
}

// Full sockets, turns that stand still, repairs that fail, windows that close early: in all of the processes.
TEST_F(Training, GoesOnThroughInjectedRareEvents) {
  for (const Program* program :
       Train(60, {{"--fault", "drop=0.05,delay=2ms,seed=7"}, {"--inject", "all=0.02,seed=3"}},
             {{"--inject", "all=0.02,seed=4"}})) {
    EXPECT_THAT(program->Errors(), HasSubstr("rare events are injected"));
  }
  EXPECT_GT(Summary("worker0").value("accuracy", 0.0), 0.9);
  const json server = Summary("server");
  EXPECT_EQ(server.value("rounds", 0), 60);
  EXPECT_EQ(server.value("duplicate_contributions", -1), 0);
}

TEST_F(Training, WhatCannotBeInjectedIsSaid) {
  Program& wrong =
      Start("longhaul-server", {"--listen", "127.0.0.1:0", "--insecure", "--inject", "flood=0.1"});
  ExpectEnd(wrong, 2);
  EXPECT_THAT(wrong.Errors(), HasSubstr("no such point; there are "));
  EXPECT_THAT(wrong.Errors(), HasSubstr("socket-full"));
}

TEST_F(Training, LearnsFromResultsThatLoseChunks) {
  const std::string loss = "drop=0.05,delay=3ms,seed=";
  Train(60, {{"--fault", loss + "7"}},
        {{"--downlink", "lossy"}, {"--hash-rounds", "12"}, {"--fault", loss + "8"}});
  uint64_t lost = 0;
  for (const std::string of : {"worker0", "worker1"}) {
    const json worker = Summary(of);
    EXPECT_EQ(worker.value("rounds", 0), 60);
    // The report of the last round may come after the goodbye.
    EXPECT_GE(worker["totals"].value("state_hashes_agreed", 0), 4 * 4) << "four hash rounds, four tensors";
    EXPECT_EQ(worker["totals"].value("state_hash_mismatches", -1), 0);
    lost += worker["totals"].value("result_chunks_lost", uint64_t{0});
  }
  EXPECT_GT(lost, 0u);
  EXPECT_GT(Summary("worker0").value("accuracy", 0.0), 0.9);
  const json server = Summary("server");
  EXPECT_GT(server.value("result_chunks_repaid", 0), 0);
  EXPECT_EQ(server.value("state_hashes", 0), 5 * 4);
}

TEST_F(Training, AnEmbeddedClientConverges) {
  Program& server = StartServer({{"--workers", "1"}, {"--once", ""}});
  Program& client = Start("embed_client", {address(), key_file()});
  ExpectEnd(client, 0);
  ExpectEnd(server, 0);
  const std::string output = client.Output();
  const size_t last = output.find("round 20: w[9999] = ");
  ASSERT_NE(last, std::string::npos) << output;
  // The distance halves every round: 9999 * 2^-20 = 0.01.
  EXPECT_NEAR(std::stod(output.substr(last + 20)), 9999, 1);
}

TEST_F(Training, AnEmbeddedClientWithLocalStepsConverges) {
  Program& server = StartServer({{"--workers", "1"}, {"--once", ""}});
  Program& client = Start("example_local_steps", {address(), key_file()});
  ExpectEnd(client, 0);
  ExpectEnd(server, 0);
  const std::string output = client.Output();
  const size_t last = output.find("round 30: w[9999] = ");
  ASSERT_NE(last, std::string::npos) << output;
  EXPECT_NEAR(std::stod(output.substr(last + 20)), 9999, 1);
}

TEST_F(Training, WithoutOnceTheServerServesOneJobAfterTheOther) {
  Program& server = StartServer();
  for (int job = 0; job < 2; ++job) {
    Program& first = StartWorker(0, {{"--rounds", "5"}});
    Program& second = StartWorker(1, {{"--rounds", "5"}});
    ExpectEnd(first, 0);
    ExpectEnd(second, 0);
  }
  const auto finished_twice = [&] {
    const std::string output = server.Output();
    const std::string finished = "\"event\":\"finished\"";
    const size_t first = output.find(finished);
    return first != std::string::npos && output.find(finished, first + 1) != std::string::npos;
  };
  EXPECT_TRUE(Eventually(finished_twice));
  EXPECT_TRUE(server.running());
  server.Signal(SIGTERM);
  ExpectEnd(server, 0, seconds(3) * kSlowness);
}

}  // namespace
}  // namespace longhaul::e2e
