#include "codec/chunk/top_k.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/random.h"

namespace longhaul::codec {
namespace {

using ::testing::ElementsAre;

std::vector<float> Normals(uint64_t seed, size_t count) {
  Random random(seed);
  std::vector<float> values(count);
  for (float& v : values) v = static_cast<float>(random.Normal());
  return values;
}

double ShareReaching(std::span<const float> values, float threshold) {
  const auto n = std::ranges::count_if(values, [&](float v) { return std::abs(v) >= threshold; });
  return static_cast<double>(n) / static_cast<double>(values.size());
}

TEST(TopK, TheThresholdIsExactForSmallTensors) {
  const std::vector<float> values = {1, -9, 2, 8, -3, 7, 4, -6, 5, 0};
  EXPECT_EQ(TopKThreshold(values, 0.1, 0), 9.0f);
  EXPECT_EQ(TopKThreshold(values, 0.3, 0), 7.0f);
  EXPECT_EQ(TopKThreshold(values, 1.0, 0), 0.0f);
  EXPECT_EQ(TopKThreshold(values, 1e-9, 0), 9.0f) << "at least one";
  const std::vector<float> many = Normals(1, kTopKSample);
  EXPECT_EQ(ShareReaching(many, TopKThreshold(many, 0.05, 0)), 0.05);
}

TEST(TopK, ASampleMeetsTheShareOfALargeTensor) {
  // Within five standard deviations of a sample of 10,000.
  std::vector<float> values = Normals(2, 300'000);
  // Two layers of very different size, and a period that a sample in step with it would miss.
  for (size_t i = 0; i < values.size() / 3; ++i) values[i] *= 100;
  for (size_t i = 0; i < values.size(); i += 30) values[i] *= 1000;
  for (const double share : {0.01, 0.1, 0.5}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const double met = ShareReaching(values, TopKThreshold(values, share, seed));
      EXPECT_NEAR(met, share, 5 * std::sqrt(share * (1 - share) / kTopKSample)) << "seed " << seed;
    }
  }
  EXPECT_EQ(TopKThreshold(values, 0.1, 3), TopKThreshold(values, 0.1, 3));
  EXPECT_NE(TopKThreshold(values, 0.1, 3), TopKThreshold(values, 0.1, 4));
}

TEST(TopK, TheLargestTravelAndTheOthersStayAtTheirPlace) {
  const std::vector<float> values = {1, -9, 2, 8, -3, 0, 4};
  std::vector<float> out(values.size(), -1.0f);
  EXPECT_EQ(SelectTopK(values, 3.0f, 10, out), 4u);
  EXPECT_THAT(out, ElementsAre(0, -9, 0, 8, -3, 0, 4));
  EXPECT_EQ(SelectTopK(values, 0.0f, 10, out), 6u) << "a zero never travels";
  EXPECT_THAT(out, ElementsAre(1, -9, 2, 8, -3, 0, 4));
  EXPECT_EQ(SelectTopK(values, 100.0f, 10, out), 0u);
}

TEST(TopK, NoMoreThanTheCapacityTravelsAndThoseAreTheLargest) {
  const std::vector<float> values = {1, -9, 2, 8, -3, 0, 4};
  std::vector<float> out(values.size());
  EXPECT_EQ(SelectTopK(values, 2.0f, 2, out), 2u);
  EXPECT_THAT(out, ElementsAre(0, -9, 0, 8, 0, 0, 0));
  EXPECT_EQ(SelectTopK(values, 2.0f, 0, out), 0u);
  EXPECT_THAT(out, ElementsAre(0, 0, 0, 0, 0, 0, 0));
  const std::vector<float> equal = {1, -2, 2, 2, -2, 3};
  std::vector<float> some(equal.size());
  EXPECT_EQ(SelectTopK(equal, 1.5f, 3, some), 3u);
  EXPECT_THAT(some, ElementsAre(0, -2, 2, 0, 0, 3)) << "the first among equals";
}

TEST(TopK, AgreesWithASortOnAnything) {
  constexpr uint64_t kSeed = 3;
  Random random(kSeed);
  for (int trial = 0; trial < 500; ++trial) {
    std::vector<float> values(1 + random.Below(200));
    for (float& v : values) v = static_cast<float>(random.Below(20)) - 10.0f;  // many ties and zeros
    const auto threshold = static_cast<float>(random.Below(11));
    const auto capacity = static_cast<uint32_t>(random.Below(values.size() + 2));
    std::vector<float> out(values.size());
    const uint32_t selected = SelectTopK(values, threshold, capacity, out);
    std::vector<float> expected;
    for (float v : values) {
      if (v != 0 && std::abs(v) >= threshold) expected.push_back(std::abs(v));
    }
    std::ranges::sort(expected, std::greater<>());
    if (expected.size() > capacity) expected.resize(capacity);
    std::vector<float> got;
    for (size_t i = 0; i < out.size(); ++i) {
      if (out[i] == 0) continue;
      ASSERT_EQ(out[i], values[i]);
      got.push_back(std::abs(out[i]));
    }
    std::ranges::sort(got, std::greater<>());
    ASSERT_EQ(got, expected) << "seed " << kSeed << " trial " << trial;
    ASSERT_EQ(selected, expected.size());
  }
}

}  // namespace
}  // namespace longhaul::codec
