// What gradients and results are sent as, and which gradients are sent reliably: real daemons over the
// loopback interface with injected loss. Bytes are counted, not timed.
#include <map>
#include <sstream>

#include "tests/e2e/support/job.h"

namespace longhaul::e2e {
namespace {

using nlohmann::json;
class WireTypes : public JobTest {
 protected:
  static constexpr int kRounds = 40;

  struct Outcome {
    double accuracy = 0;
    double chunk_bytes = 0;  // gradients of both workers, as they left for the first time
    json joined;             // what worker 0 was told
    json round;              // the server's report of the first one
    json server;             // and of the job
  };

  Outcome Train(const Flags& server_flags, const Flags& worker_flags) {
    Program& server =
        StartServer(Merged({{"--once", ""}, {"--json", directory() + "/server.json"}}, server_flags));
    std::vector<Program*> workers;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      workers.push_back(&StartWorker(
          rank,
          Merged({{"--rounds", std::to_string(kRounds)}, {"--fault", "drop=0.05,seed=7"}}, worker_flags)));
    }
    Outcome outcome;
    for (Program* worker : workers) {
      ExpectEnd(*worker, 0);
      const json finished = worker->FindEvent("finished").value_or(json::object());
      outcome.accuracy = std::max(outcome.accuracy, finished.value("accuracy", 0.0));
      if (finished.contains("totals"))
        outcome.chunk_bytes += finished["totals"].value("chunk_bytes_sent", 0.0);
    }
    ExpectEnd(server, 0);
    outcome.server = json::parse(ReadFile(directory() + "/server.json"), nullptr, false);
    EXPECT_EQ(outcome.server.value("duplicate_contributions", -1), 0);
    outcome.round = server.FindEvent("round").value_or(json::object());
    outcome.joined = workers[0]->FindEvent("joined").value_or(json::object());
    return outcome;
  }
};

// Of both workers, as float32 without headers.
constexpr double kGradientBytes = 2.0 * 101'770 * 4;

TEST_F(WireTypes, ShorterTypesSendFewerBytesAndLearnAsWell) {
  const std::map<std::string, double> shares = {
      {"float32", 1.0}, {"bfloat16", 0.5}, {"float16", 0.5}, {"int8", 0.25}};
  for (const auto& [type, share] : shares) {
    SCOPED_TRACE(type);
    const std::string back = type == "int8" ? "bfloat16" : type;
    const Outcome outcome = Train({}, {{"--wire-dtype", type}, {"--result-dtype", back}});
    EXPECT_GT(outcome.accuracy, 0.9);
    const double sent = outcome.chunk_bytes / (kRounds * kGradientBytes);
    EXPECT_LT(sent, 1.15 * share);
    EXPECT_GT(sent, 0.6 * share) << "what rounds to zero does not travel: float16 has no values below 2^-24";
    const double results = outcome.server.value("chunk_bytes_down", 0.0) / (kRounds * kGradientBytes);
    EXPECT_LT(results, 1.15 * shares.at(back)) << "results, and the model once or twice";
    EXPECT_GT(results, shares.at(back));
  }
}

TEST_F(WireTypes, TopKSendsTheLargestElementsOnly) {
  const Outcome outcome = Train({{"--priority", "topk"}, {"--topk", "0.1"}}, {});
  EXPECT_GT(outcome.accuracy, 0.9);
  EXPECT_EQ(outcome.joined.value("priority", ""), "topk");
  EXPECT_NEAR(outcome.chunk_bytes / (kRounds * kGradientBytes), 0.1 + 1.0 / 32, 0.04) << "values and bitmap";
}

TEST_F(WireTypes, LayerOrderLearnsAsWell) {
  const Outcome outcome = Train({{"--priority", "layer"}}, {});
  EXPECT_GT(outcome.accuracy, 0.9);
  EXPECT_EQ(outcome.joined.value("priority", ""), "layer");
  EXPECT_NEAR(outcome.chunk_bytes / (kRounds * kGradientBytes), 1, 0.15);
}

TEST_F(WireTypes, AShareOfTheEnergyDecidesHowMuchIsSentReliably) {
  const auto low_chunks = [&](const std::string& share) {
    const Outcome outcome = Train({{"--high-energy", share}}, {});
    EXPECT_GT(outcome.accuracy, 0.9);
    EXPECT_EQ(outcome.joined.value("high_energy", 0.0), std::stod(share));
    return outcome.round.value("low_chunks", 0);
  };
  const int at_half = low_chunks("0.5");
  const int at_most = low_chunks("0.8");
  EXPECT_GT(at_half, at_most);
  EXPECT_GT(at_most, 0);
}

TEST_F(WireTypes, ARoundSaysWhatWasLostAndWhatBecameOfIt) {
  Program& server = StartServer({{"--once", ""}, {"--policy", "count"}, {"--bubble-threshold", "0.01"}});
  std::vector<Program*> workers;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    workers.push_back(&StartWorker(rank, {{"--rounds", "20"}, {"--fault", "drop=0.2,delay=2ms,seed=3"}}));
  }
  for (Program* worker : workers) ExpectEnd(*worker, 0);
  ExpectEnd(server, 0);
  const json finished = server.FindEvent("finished").value_or(json::object());
  EXPECT_GT(finished.value("filled_chunks", 0), 0);
  EXPECT_EQ(finished.value("bubble_threshold", 0.0), 0.01);
  int closed = 0;
  for (const auto& [reason, count] : finished["windows_closed"].items()) closed += count.get<int>();
  EXPECT_GE(closed, 20 * 2 * 4) << "four tensors, and their initial values";
  const json round = server.FindEvent("round").value_or(json::object());
  for (const char* key : {"bubble_threshold", "low_chunks", "low_lost", "lost_chunks", "filled_chunks",
                          "tolerated_chunks", "rejected_chunks", "excluded"}) {
    EXPECT_TRUE(round.contains(key) && round[key].is_number()) << key << " in " << round.dump();
  }
  EXPECT_EQ(round.value("fill_reason", ""), "above_threshold") << round.dump();
  // A worker hears it too, of most rounds: a report that was lost may come after the round's end.
  std::istringstream lines(workers[0]->Output());
  int reported = 0;
  for (std::string line; std::getline(lines, line);) {
    const json event = json::parse(line, nullptr, false);
    if (!event.is_object() || !event.contains("report")) continue;
    ++reported;
    EXPECT_EQ(event["report"].value("bubble_threshold", 0.0), 0.01) << line;
    EXPECT_GT(event["report"].value("contributors", 0), 0) << line;
  }
  EXPECT_GE(reported, 5);
}

}  // namespace
}  // namespace longhaul::e2e
