#include "base/random.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <vector>

namespace longhaul {
namespace {

constexpr int kDraws = 100'000;

// An independent transcription of xoshiro256++ with a splitmix64 seed; seeds replay on every machine for
// ever.
std::vector<uint64_t> ReferenceSequence(uint64_t seed, int n) {
  std::array<uint64_t, 4> s{};
  for (uint64_t& word : s) {
    uint64_t z = (seed += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    word = z ^ (z >> 31);
  }
  const auto rotl = [](uint64_t x, int k) { return (x << k) | (x >> (64 - k)); };
  std::vector<uint64_t> out;
  for (int i = 0; i < n; ++i) {
    out.push_back(rotl(s[0] + s[3], 23) + s[0]);
    const uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
  }
  return out;
}

TEST(Random, IsXoshiro256PlusPlusSeededBySplitmix64) {
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{42}, ~uint64_t{0}}) {
    Random random(seed);
    for (const uint64_t expected : ReferenceSequence(seed, 100)) ASSERT_EQ(random.Next(), expected) << seed;
  }
}

TEST(Random, FirstDrawOfSeedZeroNeverChanges) {
  // splitmix64(0) begins e220a8397b1dcdaf 6e789e6aa1b965f4 06c45d188009454f f88bb8a8724c81ec.
  EXPECT_EQ(Random(0).Next(),
            std::rotl(0xe220a8397b1dcdafull + 0xf88bb8a8724c81ecull, 23) + 0xe220a8397b1dcdafull);
}

TEST(Random, SameSeedSameSequence) {
  Random a(7), b(7), c(8);
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const uint64_t v = a.Next();
    EXPECT_EQ(v, b.Next());
    differs |= v != c.Next();
  }
  EXPECT_TRUE(differs);
}

TEST(Random, BelowIsUniformAndInRange) {
  Random random(1);
  constexpr uint64_t kBound = 10;
  std::array<int, kBound> count{};
  for (int i = 0; i < kDraws; ++i) {
    const uint64_t v = random.Below(kBound);
    ASSERT_LT(v, kBound);
    ++count[v];
  }
  // Standard deviation of a bin is about 95.
  for (int c : count) EXPECT_NEAR(c, kDraws / kBound, 500);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(random.Below(1), 0u);
  for (int i = 0; i < 100; ++i) EXPECT_LT(random.Below((uint64_t{1} << 63) + 1), (uint64_t{1} << 63) + 1);
}

TEST(RandomDeathTest, BelowZeroIsABug) {
  Random random(1);
  EXPECT_DEATH(random.Below(0), "bug");
}

TEST(Random, UniformStaysBelowOne) {
  Random random(2);
  double sum = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = random.Uniform();
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.005);
}

TEST(Random, ChanceHasItsProbabilityAndClamps) {
  Random random(3);
  int hits = 0;
  for (int i = 0; i < kDraws; ++i) {
    hits += random.Chance(0.2);
    ASSERT_FALSE(random.Chance(0));
    ASSERT_FALSE(random.Chance(-1));
    ASSERT_TRUE(random.Chance(1));
    ASSERT_TRUE(random.Chance(2));
  }
  EXPECT_NEAR(static_cast<double>(hits) / kDraws, 0.2, 0.01);
}

TEST(Random, NormalHasMeanZeroAndVarianceOne) {
  Random random(4);
  double sum = 0, squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = random.Normal();
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kDraws, 0, 0.02);
  EXPECT_NEAR(squares / kDraws, 1, 0.03);
}

TEST(Random, ForksAreIndependentOfEachOthersDraws) {
  Random a(9), b(9);
  Random a_links = a.Fork(1), a_workers = a.Fork(2);
  Random b_links = b.Fork(1), b_workers = b.Fork(2);
  for (int i = 0; i < 10; ++i) b_links.Next();  // one part draws more
  for (int i = 0; i < 100; ++i) ASSERT_EQ(a_workers.Next(), b_workers.Next());
  EXPECT_NE(a_links.Next(), a_workers.Next());
  EXPECT_NE(Random(9).Fork(1).Next(), Random(9).Fork(2).Next());
}

}  // namespace
}  // namespace longhaul
