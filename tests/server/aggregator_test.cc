#include "server/tensor/aggregator.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "base/random.h"

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

// --- Order of rank ---

struct Contribution {
  uint32_t rank = 0;
  uint32_t chunk = 0;
  std::vector<float> values;
};

constexpr uint32_t kRanks = 7;
float WeightOf(uint32_t rank) { return 1.0f / static_cast<float>(3 + rank); }

// Every bit of a round: sums, and the weights behind them.
std::vector<uint64_t> BitsOfRound(Aggregator& aggregator, const std::vector<Contribution>& arrivals) {
  for (const Contribution& c : arrivals) aggregator.Add(c.rank, c.chunk, c.values, WeightOf(c.rank));
  std::vector<uint64_t> bits;
  for (uint32_t chunk = 0; chunk < kGeometry.chunks(); ++chunk) {
    bits.push_back(std::bit_cast<uint64_t>(aggregator.weight(chunk)));
    for (const float value : aggregator.sum(chunk)) bits.push_back(std::bit_cast<uint32_t>(value));
    bits.push_back(std::bit_cast<uint64_t>(aggregator.weight(chunk)));
  }
  aggregator.Reset();
  return bits;
}

// What some rounds contribute: values of very different sizes, and some ranks are missing in some chunks.
std::vector<Contribution> RandomRound(Random& random) {
  std::vector<Contribution> round;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    for (uint32_t chunk = 0; chunk < kGeometry.chunks(); ++chunk) {
      if (random.Chance(0.2)) continue;
      Contribution c{rank, chunk, std::vector<float>(kGeometry.Length(chunk))};
      for (float& v : c.values) v = static_cast<float>(random.Normal() * std::exp(3 * random.Normal()));
      round.push_back(c);
    }
  }
  return round;
}

void Shuffle(std::vector<Contribution>& arrivals, Random& random) {
  for (size_t i = arrivals.size(); i > 1; --i) std::swap(arrivals[i - 1], arrivals[random.Below(i)]);
}

TEST(Aggregator, InOrderOfRankEveryBitIsTheSameWhateverArrivedWhen) {
  const uint64_t seed = 3;
  Random random(seed);
  Aggregator by_rank(kGeometry, kRanks, Aggregator::Order::kRank);
  Aggregator by_arrival(kGeometry, kRanks);
  int differs = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<Contribution> arrivals = RandomRound(random);
    // In rank order, as made: then the order of arrival is the order of rank, and both sum alike.
    const std::vector<uint64_t> expected = BitsOfRound(by_arrival, arrivals);
    for (int order = 0; order < 5; ++order) {
      ASSERT_EQ(BitsOfRound(by_rank, arrivals), expected) << "round " << round << ", seed " << seed;
      Shuffle(arrivals, random);
    }
    differs += BitsOfRound(by_arrival, arrivals) != expected ? 1 : 0;
  }
  EXPECT_GT(differs, 100) << "the order must matter to the sums for this test to mean anything";
}

TEST(Aggregator, HeldContributionsCountAtOnceAndAreReleased) {
  Aggregator aggregator(kGeometry, 2, Aggregator::Order::kRank);
  EXPECT_TRUE(aggregator.Add(1, 0, std::vector<float>{1, 2}, 0.5f));
  EXPECT_FALSE(aggregator.Add(1, 0, std::vector<float>{1, 2}, 0.5f));
  EXPECT_TRUE(aggregator.Add(0, 0, std::vector<float>{4, 4}, 2));
  EXPECT_TRUE(aggregator.Add(0, 1, std::vector<float>{4, 4}, 2));
  EXPECT_EQ(aggregator.contributors(0), 2u);
  EXPECT_EQ(aggregator.weight(0), 2.5);
  EXPECT_EQ(aggregator.held_chunks(), 3u);
  EXPECT_EQ(Sum(aggregator, 0), (std::vector<float>{8.5f, 9}));
  EXPECT_EQ(Sum(aggregator, 0), (std::vector<float>{8.5f, 9})) << "asked twice";
  EXPECT_EQ(aggregator.weight(0), 2.5);
  EXPECT_EQ(aggregator.held_chunks(), 1u);
  EXPECT_EQ(Sum(aggregator, 2), (std::vector<float>{0}));
  aggregator.Reset();
  EXPECT_EQ(aggregator.held_chunks(), 0u);
  EXPECT_EQ(aggregator.weight(1), 0);
  EXPECT_EQ(Sum(aggregator, 1), (std::vector<float>{0, 0}));
}

}  // namespace
}  // namespace longhaul::server
