#include "server/aggregator.h"

#include <gtest/gtest.h>

namespace longhaul::server {
namespace {

std::vector<float> Sum(Aggregator& aggregator, uint32_t chunk) {
  const auto sum = aggregator.sum(chunk);
  return {sum.begin(), sum.end()};
}

// Five elements in chunks of two: the last chunk is short.
const codec::ChunkGeometry kGeometry{.count = 5, .chunk_elements = 2};

TEST(Aggregator, SumsWeightedContributionsPerChunk) {
  Aggregator aggregator(kGeometry, 2);
  EXPECT_TRUE(aggregator.Add(0, 0, std::vector<float>{1, 2}, 1));
  EXPECT_TRUE(aggregator.Add(1, 0, std::vector<float>{10, 20}, 0.5f));
  EXPECT_TRUE(aggregator.Add(1, 2, std::vector<float>{7}, 1));
  EXPECT_EQ(Sum(aggregator, 0), (std::vector<float>{6, 12}));
  EXPECT_EQ(aggregator.weight(0), 1.5);
  EXPECT_EQ(aggregator.contributors(0), 2u);
  EXPECT_EQ(Sum(aggregator, 2), (std::vector<float>{7}));
}

TEST(Aggregator, ADuplicateContributionIsNeverAddedTwice) {
  Aggregator aggregator(kGeometry, 2);
  EXPECT_TRUE(aggregator.Add(1, 1, std::vector<float>{3, 4}, 1));
  EXPECT_FALSE(aggregator.Add(1, 1, std::vector<float>{3, 4}, 1));
  EXPECT_EQ(Sum(aggregator, 1), (std::vector<float>{3, 4}));
  EXPECT_EQ(aggregator.weight(1), 1.0);
  EXPECT_TRUE(aggregator.Contributed(1, 1));
  EXPECT_FALSE(aggregator.Contributed(0, 1));
}

TEST(Aggregator, ANewRoundStartsFromZero) {
  Aggregator aggregator(kGeometry, 1);
  aggregator.Add(0, 0, std::vector<float>{1, 2}, 1);
  aggregator.Reset();
  EXPECT_EQ(Sum(aggregator, 0), (std::vector<float>{0, 0}));
  EXPECT_TRUE(aggregator.Add(0, 0, std::vector<float>{5, 6}, 1));
  EXPECT_EQ(Sum(aggregator, 0), (std::vector<float>{5, 6}));
}

}  // namespace
}  // namespace longhaul::server
