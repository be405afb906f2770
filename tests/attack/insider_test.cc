// A member of the job, with its key, that wants more than its share of it.
#include "tests/attack/support/attack_test.h"

namespace longhaul::attack {
namespace {

constexpr size_t kElements = 4096;
constexpr uint32_t kWorkers = 4;

class Insider : public AttackTest {
 protected:
  // All are in; rank 3 says that its gradients weigh so much.
  void StartJob(float weight) {
    StartTarget({{"--workers", std::to_string(kWorkers)}});
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      ConnectOptions options;
      options.servers = {address()};
      options.rank = rank;
      options.world_size = kWorkers;
      options.key_file = key_file();
      options.connect_timeout = kPatience;
      options.weight = rank + 1 == kWorkers ? weight : 1;
      auto client = Client::Connect(options);
      ASSERT_TRUE(client.ok()) << client.status().ToString();
      clients().emplace_back(*std::move(client));
    }
    for (auto& client : clients()) {
      auto tensor = client->Declare("w", {.count = kElements, .optimizer = "aggregate"});
      ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
      tensors_.push_back(*tensor);
    }
  }
  // The honest push `honest`, the last one `malicious`; the mean that all read.
  float Mean(float honest, float malicious) {
    std::vector<std::vector<float>> given, results;
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      given.emplace_back(kElements, rank + 1 == kWorkers ? malicious : honest);
      results.emplace_back(kElements);
    }
    std::vector<Operation> operations;
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
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
  StartJob(1e9f);
  for (int round = 0; round < 5; ++round) EXPECT_NEAR(Mean(1, -1), 0, 1e-6) << "three against three";
  EXPECT_THAT(server().Errors(), ::testing::HasSubstr("says weight 1e+09, which counts as 3"));
  const nlohmann::json status = AskServer();
  EXPECT_EQ(status["members"][3].value("counted_weight", 0.0), 3);
  EXPECT_EQ(status.value("weights_bounded", 0), 5);
}

}  // namespace
}  // namespace longhaul::attack
