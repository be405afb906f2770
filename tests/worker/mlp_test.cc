#include "worker/demo/mlp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/random.h"

namespace longhaul::worker {
namespace {

Batch RandomBatch(size_t size, uint64_t seed) {
  Random random(seed);
  Batch batch;
  for (size_t i = 0; i < size * Dataset::kPixels; ++i)
    batch.images.push_back(static_cast<float>(random.Normal()));
  for (size_t i = 0; i < size; ++i) batch.labels.push_back(static_cast<uint8_t>(random.Below(10)));
  return batch;
}

TEST(MlpTest, GradientAgreesWithFiniteDifferences) {
  const uint64_t seed = 11;
  Mlp model(seed);
  const Batch batch = RandomBatch(8, seed);
  Mlp::Tensors gradients = Mlp::Zeros();
  model.Gradient(batch, gradients);

  Random random(seed);
  for (size_t t = 0; t < Mlp::kTensors; ++t) {
    for (int probe = 0; probe < 12; ++probe) {
      const size_t i = random.Below(Mlp::kShapes[t].count);
      const float kept = model.parameters()[t][i];
      const float step = 2e-3f;  // small enough to stay on one side of most kinks of ReLU
      model.parameters()[t][i] = kept + step;
      const double above = model.Loss(batch);
      model.parameters()[t][i] = kept - step;
      const double below = model.Loss(batch);
      model.parameters()[t][i] = kept;
      const double numeric = (above - below) / (2.0 * static_cast<double>(step));
      EXPECT_NEAR(gradients[t][i], numeric, 2e-3 + 0.03 * std::abs(numeric))
          << Mlp::kShapes[t].name << "[" << i << "], seed " << seed;
    }
  }
}

TEST(MlpTest, StartsAsUnsureAsTenClassesAllow) {
  const Mlp model(1);
  EXPECT_NEAR(model.Loss(RandomBatch(64, 2)), std::log(10.0), 1.2);
}

TEST(MlpTest, SameSeedGivesTheSameModel) {
  EXPECT_EQ(Mlp(5).parameters(), Mlp(5).parameters());
  EXPECT_NE(Mlp(5).parameters(), Mlp(6).parameters());
}

TEST(MlpTest, SurvivesLogitsThatWouldOverflow) {
  Mlp model(1);
  for (float& w : model.parameters()[2]) w *= 1e4f;
  Mlp::Tensors gradients = Mlp::Zeros();
  EXPECT_TRUE(std::isfinite(model.Gradient(RandomBatch(4, 3), gradients)));
}

TEST(MiniBatchesTest, IsAFunctionOfSeedRankAndRound) {
  Dataset shard;
  for (uint32_t i = 0; i < 10; ++i) {
    shard.pixels.insert(shard.pixels.end(), Dataset::kPixels, static_cast<uint8_t>(i));
    shard.labels.push_back(static_cast<uint8_t>(i));
  }
  MiniBatches in_order(shard, 4, 1, 9);
  MiniBatches restarted(shard, 4, 1, 9);
  MiniBatches other_rank(shard, 4, 2, 9);
  std::vector<size_t> drawn(10, 0);
  bool ranks_differ = false;
  for (uint64_t round = 0; round < 5; ++round) {  // two epochs of ten images
    const Batch batch = in_order.ForRound(round);
    ASSERT_EQ(batch.size(), 4u);
    for (uint8_t label : batch.labels) drawn[label]++;
    ranks_differ |= batch.labels != other_rank.ForRound(round).labels;
    if (round == 3) {
      EXPECT_EQ(batch.labels, restarted.ForRound(3).labels);
    }
  }
  EXPECT_EQ(drawn, std::vector<size_t>(10, 2)) << "every image once per epoch";
  EXPECT_TRUE(ranks_differ);
}

// The job of the demo in one process: four shards, the mean of their gradients, SGD with momentum. The demo
// has 500 rounds and ends above 0.86; fewer are enough to see that it learns, also under sanitizers.
TEST(MlpTest, FourShardsLearnFashionMnistTogether) {
  if (!std::filesystem::exists(kDefaultDatasetDirectory))
    GTEST_SKIP() << "package dataset-fashion-mnist is missing";
  Result<Dataset> train = LoadFashionMnist(kDefaultDatasetDirectory, DatasetPart::kTrain);
  Result<Dataset> test = LoadFashionMnist(kDefaultDatasetDirectory, DatasetPart::kTest);
  ASSERT_TRUE(train.ok() && test.ok());

  constexpr uint32_t kWorkers = 4;
  constexpr int kRounds = 150;
  constexpr float kLearningRate = 0.1f;
  constexpr float kMomentum = 0.9f;
  std::vector<Dataset> shards;
  for (uint32_t w = 0; w < kWorkers; ++w) shards.push_back(ShardOf(*train, w, kWorkers, 1));
  std::vector<MiniBatches> batches;
  for (uint32_t w = 0; w < kWorkers; ++w) batches.emplace_back(shards[w], 64, w, 1);

  Mlp model(1);
  Mlp::Tensors velocity = Mlp::Zeros();
  Mlp::Tensors gradients = Mlp::Zeros();
  for (int round = 0; round < kRounds; ++round) {
    for (auto& v : velocity) {
      for (float& x : v) x *= kMomentum;
    }
    const float share = (1.0f - static_cast<float>(round) / kRounds) / kWorkers;
    for (MiniBatches& b : batches) {
      model.Gradient(b.ForRound(static_cast<uint64_t>(round)), gradients);
      for (size_t t = 0; t < Mlp::kTensors; ++t) {
        for (size_t i = 0; i < gradients[t].size(); ++i) velocity[t][i] += share * gradients[t][i];
      }
    }
    for (size_t t = 0; t < Mlp::kTensors; ++t) {
      for (size_t i = 0; i < velocity[t].size(); ++i)
        model.parameters()[t][i] -= kLearningRate * velocity[t][i];
    }
  }
  EXPECT_GE(model.Accuracy(*test), 0.83);
}

}  // namespace
}  // namespace longhaul::worker
