#include "server/grants/grants.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/random.h"

namespace longhaul::server {
namespace {

constexpr Bandwidth kCapacity = Bandwidth::Mbps(200);

Bandwidth Sum(const std::vector<Bandwidth>& shares) {
  return std::accumulate(shares.begin(), shares.end(), Bandwidth::Zero());
}

TEST(WaterFillTest, SharesByWeight) {
  const std::vector<Claim> claims = {{.weight = 1, .floor = {}}, {.weight = 3, .floor = {}}};
  const auto shares = WaterFill(kCapacity, claims);
  EXPECT_NEAR(shares[0].mbps(), 50, 0.001);
  EXPECT_NEAR(shares[1].mbps(), 150, 0.001);
}

TEST(WaterFillTest, WhatOneCannotUseGoesToTheOthersByWeight) {
  const std::vector<Claim> claims = {{.weight = 2, .floor = {}, .ceiling = Bandwidth::Mbps(20)},
                                     {.weight = 1, .floor = {}},
                                     {.weight = 2, .floor = {}}};
  const auto shares = WaterFill(kCapacity, claims);
  EXPECT_NEAR(shares[0].mbps(), 20, 0.001);
  EXPECT_NEAR(shares[1].mbps(), 60, 0.001);
  EXPECT_NEAR(shares[2].mbps(), 120, 0.001);
}

TEST(WaterFillTest, AFloorIsKeptEvenWithoutWeight) {
  const std::vector<Claim> claims = {{.weight = 0, .floor = Bandwidth::Mbps(5)}, {.weight = 1, .floor = {}}};
  const auto shares = WaterFill(kCapacity, claims);
  EXPECT_NEAR(shares[0].mbps(), 5, 0.001);
  EXPECT_NEAR(shares[1].mbps(), 195, 0.001);
}

TEST(WaterFillTest, FloorsThatDoNotFitAreScaledDown) {
  const std::vector<Claim> claims = {{.weight = 1, .floor = Bandwidth::Mbps(300)},
                                     {.weight = 1, .floor = Bandwidth::Mbps(100)}};
  const auto shares = WaterFill(kCapacity, claims);
  EXPECT_LE(Sum(shares), kCapacity);
  EXPECT_NEAR(shares[0].mbps(), 2 * shares[1].mbps(),
              0.001);  // the first one's floor is the capacity at most
}

TEST(WaterFillTest, NobodyWantsAnything) {
  EXPECT_TRUE(WaterFill(kCapacity, {}).empty());
  const std::vector<Claim> claims = {{.weight = 0, .floor = {}}, {.weight = 0, .floor = {}}};
  EXPECT_TRUE(Sum(WaterFill(kCapacity, claims)).IsZero());
}

// Sum, bounds, no starvation, work conservation, fairness and monotony, whatever the claims.
TEST(WaterFillTest, HoldsItsPromisesForRandomClaims) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    std::vector<Claim> claims(1 + random.Below(40));
    for (Claim& claim : claims) {
      claim.weight = random.Chance(0.1) ? 0 : random.Uniform() * 1e9;
      claim.floor = Bandwidth::BitsPerSecond(static_cast<int64_t>(random.Below(2'000'000)));
      if (random.Chance(0.5)) {
        claim.ceiling =
            claim.floor + Bandwidth::BitsPerSecond(static_cast<int64_t>(random.Below(40'000'000)));
      }
    }
    const Bandwidth capacity =
        Bandwidth::BitsPerSecond(static_cast<int64_t>(1'000 + random.Below(400'000'000)));
    const auto shares = WaterFill(capacity, claims);
    ASSERT_EQ(shares.size(), claims.size());
    EXPECT_LE(Sum(shares), capacity);
    Bandwidth floors, wanted;
    for (const Claim& claim : claims) {
      floors = floors + claim.floor;
      wanted = wanted + std::min(claim.weight > 0 ? claim.ceiling : claim.floor, capacity);
    }
    const double slack = 1e-6 * static_cast<double>(capacity.bits_per_second()) + 50;
    // Nothing is left over that a claim could have used.
    EXPECT_GE(static_cast<double>(Sum(shares).bits_per_second()),
              static_cast<double>(std::min(capacity, wanted).bits_per_second()) - slack);
    for (size_t i = 0; i < claims.size(); ++i) {
      EXPECT_LE(shares[i], claims[i].ceiling);
      if (floors <= capacity) {
        EXPECT_GE(shares[i].bits_per_second() + 1,
                  std::min(claims[i].floor, claims[i].ceiling).bits_per_second());
      }
      // Who is between his bounds has what his weight says, compared with the others between theirs.
      for (size_t j = 0; j < i && floors <= capacity; ++j) {
        const auto inside = [&](size_t k) {
          return claims[k].weight > 0 && shares[k] > claims[k].floor + Bandwidth::BitsPerSecond(1) &&
                 shares[k] + Bandwidth::BitsPerSecond(1) < std::min(claims[k].ceiling, capacity);
        };
        if (!inside(i) || !inside(j)) continue;
        const double a = static_cast<double>(shares[i].bits_per_second()) * claims[j].weight;
        const double b = static_cast<double>(shares[j].bits_per_second()) * claims[i].weight;
        EXPECT_NEAR(a, b, 1e-6 * a + 2 * std::max(claims[i].weight, claims[j].weight));
      }
    }
    const auto more = WaterFill(capacity * 1.3, claims);
    for (size_t i = 0; i < claims.size(); ++i) {
      EXPECT_GE(more[i].bits_per_second() + 1, shares[i].bits_per_second());
    }
  }
}

}  // namespace
}  // namespace longhaul::server
