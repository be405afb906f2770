// A member of the job, with its key, that wants more than its share of it.
#include "tests/attack/support/attack_test.h"

namespace longhaul::attack {
namespace {

using ::testing::HasSubstr;

constexpr size_t kElements = 4096;
constexpr float kHuge = 1e9f;

class Insider : public AttackTest {
 protected:
  // All are in, each with what it says its gradients weigh.
  void StartJob(const std::vector<float>& weights, const e2e::Flags& more = {}) {
    StartTarget(e2e::Merged({{"--workers", std::to_string(weights.size())}}, more));
    clients().resize(weights.size());
    tensors_.resize(weights.size());
    for (uint32_t rank = 0; rank < weights.size(); ++rank) Join(rank, weights[rank]);
    for (uint32_t rank = 0; rank < weights.size(); ++rank) Declare(rank);
  }
  void Join(uint32_t rank, float weight, uint64_t incarnation = 0) {
    ConnectOptions options;
    options.servers = {address()};
    options.rank = rank;
    options.world_size = static_cast<uint32_t>(clients().size());
    options.key_file = key_file();
    options.connect_timeout = kPatience;
    options.weight = weight;
    options.incarnation = incarnation;
    auto client = Client::Connect(options);
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    clients()[rank].emplace(*std::move(client));
  }
  void Declare(uint32_t rank) {
    auto tensor = clients()[rank]->Declare("w", {.count = kElements, .optimizer = "aggregate"});
    ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
    tensors_[rank] = *tensor;
  }
  // A round in which each pushes its value everywhere; what all of them read.
  float Round(const std::vector<float>& pushed) {
    std::vector<std::vector<float>> given, results;
    for (const float value : pushed) {
      given.emplace_back(kElements, value);
      results.emplace_back(kElements);
    }
    std::vector<Operation> operations;
    for (uint32_t rank = 0; rank < pushed.size(); ++rank) {
      operations.push_back(clients()[rank]->PushPull(tensors_[rank], given[rank], results[rank]));
    }
    for (const Operation& operation : operations) EXPECT_TRUE(operation.WaitFor(kPatience).ok());
    for (const std::vector<float>& result : results) {
      EXPECT_EQ(result, std::vector<float>(kElements, results[0][0]));
    }
    return results[0][0];
  }

  std::vector<Tensor> tensors_;
};

// Would gain: a model that is its alone.
TEST_F(Insider, ThatSaysAWeightOfABillionCountsAsThreeOthers) {
  StartJob({1, 1, 1, kHuge});
  for (int round = 0; round < 5; ++round) EXPECT_NEAR(Round({1, 1, 1, -1}), 0, 1e-6) << "three against three";
  EXPECT_TRUE(server().WaitForError("says weight 1e+09, which counts as 3")) << server().Errors();
  const nlohmann::json status = AskServer();
  EXPECT_EQ(status["members"][3].value("counted_weight", 0.0), 3);
  EXPECT_NEAR(status["members"][3].value("weight_share", 0.0), 0.5, 1e-6);
  EXPECT_EQ(status["members"][3].value("max_weight_share", 0.0), 0.5);
  EXPECT_EQ(status["members"][3].value("weights_bounded", 0), 5);
  EXPECT_EQ(status.value("weights_bounded", 0), 5);
}

// The same, once all trust it: it comes again and says a billion.
TEST_F(Insider, WhoseWeightJumpsInMidJobCountsAsThreeOthers) {
  StartJob({64, 64, 64, 64});
  for (int round = 0; round < 3; ++round) EXPECT_NEAR(Round({1, 1, 1, -1}), 0.5, 1e-6);
  Join(3, kHuge, /*incarnation=*/1);
  Declare(3);
  for (int round = 0; round < 5; ++round) EXPECT_NEAR(Round({1, 1, 1, -1}), 0, 1e-6) << round;
  EXPECT_TRUE(server().WaitForError("says weight 1e+09, which counts as 192")) << server().Errors();
}

// Would gain: a share of one for two that have half of it each.
TEST_F(Insider, ThatAgreesWithAnotherOneCountsAsThreeOthersEach) {
  StartJob({1, 1, 1, kHuge, kHuge});
  for (int round = 0; round < 5; ++round)
    EXPECT_NEAR(Round({1, 1, 1, -1, -1}), -1.0 / 3, 1e-6) << "3 against 6";
}

// Would gain: a norm that the guard calls usual, since its own pushes made it so.
TEST_F(Insider, WhoseGradientsGrowSlowlyIsMeasuredByTheOthers) {
  StartJob({1, 1, 1, 1}, {{"--norm-guard", "3"}});
  float pushed = 1, least = 1;
  for (int round = 0; round < 30; ++round, pushed *= 1.3f) least = std::min(least, Round({1, 1, 1, -pushed}));
  EXPECT_GT(pushed, 1000);
  EXPECT_GE(least, 0) << "never more than three times the others' norm";
  EXPECT_GT(AskServer()["members"][3].value("rejected_chunks", 0), 0);
  EXPECT_TRUE(server().WaitForError("times the usual one")) << server().Errors();
}

// From the first round on, where there is no usual norm yet.
class InsiderOfRobust : public Insider, public ::testing::WithParamInterface<const char*> {};

TEST_P(InsiderOfRobust, MovesNothing) {
  StartJob({1, 1, 1, kHuge}, {{"--aggregation", GetParam()}, {"--policy", "count"}});
  EXPECT_FLOAT_EQ(Round({1, 1, 1, -kHuge}), 1);
  EXPECT_FLOAT_EQ(Round({2, 2, 2, kHuge}), 2);
  const float mean = Round({1, 1.1f, 1.2f, -kHuge});
  EXPECT_GE(mean, 1);
  EXPECT_LE(mean, 1.2f);
  EXPECT_EQ(AskServer()["members"][3].value("counted_weight", 0.0), 1) << "all count alike";
}

INSTANTIATE_TEST_SUITE_P(Aggregations, InsiderOfRobust, ::testing::Values("trimmed-mean", "centred-clipping"),
                         [](const auto& test) {
                           return test.param[0] == 't' ? std::string("TrimmedMean")
                                                       : std::string("CentredClipping");
                         });

}  // namespace
}  // namespace longhaul::attack
