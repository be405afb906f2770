// Where the parts of tensors are: every element once, evenly, and at the same place for all servers and
// workers.
#include "base/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"

namespace longhaul {
namespace {

struct NamedTensor {
  std::string name;
  uint64_t count = 0;
};

constexpr uint64_t kModel = 100'000'000;  // elements of float32: 400 MB

// A tensor of these sizes after the other, until the model is full.
std::vector<NamedTensor> ModelOf(const std::vector<uint64_t>& counts) {
  std::vector<NamedTensor> model;
  for (uint64_t sum = 0; sum < kModel; sum += model.back().count) {
    const size_t i = model.size();
    model.push_back(
        {"layers." + std::to_string(i / counts.size()) + "." + std::to_string(i % counts.size()) + ".weight",
         counts[i % counts.size()]});
  }
  return model;
}

// The largest server's share above, or the smallest one's below an equal one.
double Unevenness(const std::vector<NamedTensor>& model, uint32_t servers) {
  std::vector<uint64_t> held(servers);
  uint64_t sum = 0;
  for (const NamedTensor& tensor : model) {
    for (const Shard& shard : PlaceTensor(tensor.name, tensor.count, servers))
      held[shard.server] += shard.count;
    sum += tensor.count;
  }
  const double equal = static_cast<double>(sum) / servers;
  double worst = 0;
  for (const uint64_t elements : held)
    worst = std::max(worst, std::abs(static_cast<double>(elements) / equal - 1));
  return worst;
}

TEST(Placement, HasEveryElementOnceAndNoServerTwice) {
  Random random(7);
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t count = 1 + random.Below(uint64_t{1} << (1 + random.Below(34)));
    const auto servers = static_cast<uint32_t>(1 + random.Below(kMaxServers));
    const auto shards = PlaceTensor("tensor" + std::to_string(i), count, servers);
    uint64_t next = 0;
    std::set<uint32_t> used;
    for (const Shard& shard : shards) {
      ASSERT_EQ(shard.first, next);
      ASSERT_GT(shard.count, 0u);
      ASSERT_EQ(shard.first % kShardAlignment, 0u);
      ASSERT_LT(shard.server, servers);
      ASSERT_TRUE(used.insert(shard.server).second);
      next += shard.count;
    }
    ASSERT_EQ(next, count);
  }
}

TEST(Placement, CutsALargeTensorInNearlyEqualPartsOneForEachServer) {
  for (const uint32_t servers : {2u, 3u, 7u, 64u}) {
    const auto shards = PlaceTensor("embedding", kModel, servers);
    ASSERT_EQ(shards.size(), servers);
    const auto [least, most] = std::ranges::minmax(shards, {}, &Shard::count);
    EXPECT_LE(most.count - least.count, 2 * kShardAlignment);
  }
}

TEST(Placement, LeavesASmallTensorWhole) {
  EXPECT_EQ(PlaceTensor("bias", 2 * kSmallestShard - 1, 3).size(), 1u);
  EXPECT_EQ(PlaceTensor("bias", 2 * kSmallestShard, 3).size(), 2u);
  EXPECT_EQ(PlaceTensor("bias", 3 * kSmallestShard, 3).size(), 3u);
  EXPECT_EQ(PlaceTensor("bias", 1, 64).size(), 1u);
}

TEST(Placement, SpreadsAModelOf400MegabytesWithin5PerCent) {
  const std::vector<std::vector<NamedTensor>> models = {
      {{"one", kModel}},
      ModelOf({1000 * 1000}),
      ModelOf({64 * 3 * 49, 64, 64, 64 * 64 * 9, 64, 128 * 64 * 9, 128, 256 * 128 * 9, 256, 512 * 256 * 9,
               512}),                                                                            // ResNet
      ModelOf({768 * 2304, 2304, 768 * 768, 768, 768 * 3072, 3072, 3072 * 768, 768, 768, 768}),  // GPT-2
      ModelOf({50257 * 768, 1024 * 768, 768 * 2304, 2304}),
      ModelOf({4096, 1000, 10}),
      // Nothing but the largest that stay whole, and that are cut in two: by chance, which four servers bear.
      ModelOf({2 * kSmallestShard - 1}),
      ModelOf({2 * kSmallestShard, 3 * kSmallestShard - 1}),
  };
  for (const uint32_t servers : {2u, 3u, 4u, 8u}) {
    for (size_t i = 0; i < models.size() - (servers > 4 ? 2 : 0); ++i) {
      EXPECT_LT(Unevenness(models[i], servers), 0.05) << "model " << i << " on " << servers << " servers";
    }
  }
}

// What is written down of a placement is nothing: checkpoints of three servers are read by these numbers.
TEST(Placement, IsTheSameInEveryVersion) {
  using ::testing::ElementsAre;
  EXPECT_THAT(PlaceTensor("w", 100'000, 3),
              ElementsAre(Shard{1, 0, 32'768}, Shard{0, 32'768, 32'768}, Shard{2, 65'536, 34'464}));
  EXPECT_THAT(PlaceTensor("layer1.bias", 512, 3), ElementsAre(Shard{2, 0, 512}));
}

TEST(Placement, MovesAWholeTensorOnlyToAServerThatIsNew) {
  size_t moved = 0;
  constexpr size_t kTensors = 3000;
  for (size_t i = 0; i < kTensors; ++i) {
    const std::string name = "bias" + std::to_string(i);
    const Shard before = PlaceTensor(name, 100, 3).front();
    const Shard after = PlaceTensor(name, 100, 4).front();
    if (after == before) continue;
    ++moved;
    EXPECT_EQ(after.server, 3u);
  }
  EXPECT_NEAR(static_cast<double>(moved) / kTensors, 0.25, 0.03);
}

}  // namespace
}  // namespace longhaul
