#include "transport/core/window/fec_policy.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"

namespace longhaul::transport {
namespace {

// Slow and obvious: walks every pattern of losses.
double FailureByEnumeration(int k, int m, double p) {
  const int n = k + m;
  double sum = 0;
  for (uint32_t pattern = 0; pattern < 1u << n; ++pattern) {
    const int lost = __builtin_popcount(pattern);
    if (lost > m) sum += std::pow(p, lost) * std::pow(1 - p, n - lost);
  }
  return sum;
}

TEST(BlockFailureProbability, AgreesWithEnumeratingEveryLossPattern) {
  for (const int k : {1, 3, 8}) {
    for (const int m : {0, 1, 2, 5}) {
      for (const double p : {0.001, 0.05, 0.5, 0.99}) {
        const double expected = FailureByEnumeration(k, m, p);
        EXPECT_NEAR(BlockFailureProbability(k, m, p), expected, 1e-9 * expected)
            << k << "+" << m << " at " << p;
      }
    }
  }
}

TEST(BlockFailureProbability, MatchesTheFiguresOfTheDesign) {
  EXPECT_NEAR(BlockFailureProbability(20, 4, 0.01), 3.6e-6, 0.1e-6);
  EXPECT_NEAR(BlockFailureProbability(20, 4, 0.02), 9.9e-5, 0.1e-5);
  EXPECT_NEAR(BlockFailureProbability(20, 4, 0.05), 6e-3, 0.05e-3);
  EXPECT_NEAR(BlockFailureProbability(24, 8, 0.01), 2.3e-11, 0.1e-11);
  EXPECT_NEAR(BlockFailureProbability(24, 8, 0.05), 1.9e-5, 0.1e-5);
}

TEST(BlockFailureProbability, IsCertainOrImpossibleAtTheEnds) {
  EXPECT_EQ(BlockFailureProbability(20, 4, 0), 0);
  EXPECT_EQ(BlockFailureProbability(20, 4, -1), 0);
  EXPECT_NEAR(BlockFailureProbability(20, 4, 1), 1, 1e-6);
  EXPECT_NEAR(BlockFailureProbability(20, 4, 7), 1, 1e-6);
}

TEST(RepairSymbolsFor, GivesNoneWithoutLoss) { EXPECT_EQ(RepairSymbolsFor(20, 12, 0, 1000), 0); }

TEST(RepairSymbolsFor, IsTheFirstCountWhoseSuccessorGainsLessThanItCosts) {
  for (const double p : {0.005, 0.01, 0.02, 0.05, 0.1}) {
    for (const double packets : {10.0, 100.0, 1000.0, 10'000.0}) {
      const int m = RepairSymbolsFor(20, 12, p, packets);
      const auto gain = [&](int i) {
        return BlockFailureProbability(20, i, p) - BlockFailureProbability(20, i + 1, p);
      };
      for (int i = 0; i < m; ++i) EXPECT_GT(gain(i), 1 / packets) << p << " " << packets << " " << i;
      if (m < 12) {
        EXPECT_LE(gain(m), 1 / packets) << p << " " << packets;
      }
    }
  }
}

TEST(RepairSymbolsFor, DoesNotGiveUpAtHighLoss) {
  // One more symbol gains little at first, the eighth a lot.
  EXPECT_GE(RepairSymbolsFor(20, 12, 0.20, 20), 6);
  EXPECT_GE(RepairSymbolsFor(20, 12, 0.30, 100), 10);
}

TEST(RepairSymbolsFor, GrowsWithLossAndWithTheCostOfARecovery) {
  EXPECT_EQ(RepairSymbolsFor(20, 12, 0.01, 1000), 3);
  EXPECT_LT(RepairSymbolsFor(20, 12, 0.01, 1000), RepairSymbolsFor(20, 12, 0.05, 1000));
  EXPECT_LT(RepairSymbolsFor(20, 12, 0.02, 20), RepairSymbolsFor(20, 12, 0.02, 2000));
}

TEST(RepairSymbolsFor, RespectsItsBound) {
  EXPECT_EQ(RepairSymbolsFor(20, 1, 0.05, 10'000), 1);
  EXPECT_EQ(RepairSymbolsFor(20, 0, 0.05, 10'000), 0);
  EXPECT_EQ(RepairSymbolsFor(20, 12, 0.05, 0), 0) << "a recovery as cheap as one packet needs no repair";
}

TEST(LossEstimator, IsZeroBeforeTheFirstLoss) {
  LossEstimator estimator;
  for (int i = 0; i < 1000; ++i) estimator.OnPacket(false);
  EXPECT_EQ(estimator.loss(), 0);
  EXPECT_EQ(estimator.packets(), 1000u);
}

TEST(LossEstimator, SettlesAroundTheTrueLoss) {
  const uint64_t seed = 7;
  Random random(seed);
  LossEstimator estimator;
  for (int i = 0; i < 5000; ++i) estimator.OnPacket(random.Chance(0.05));
  double sum = 0;
  for (int i = 0; i < 20'000; ++i) {
    estimator.OnPacket(random.Chance(0.05));
    sum += estimator.loss();
  }
  // The larger of two unbiased averages lies a little above the truth: on the safe side.
  EXPECT_GT(sum / 20'000, 0.05) << "seed " << seed;
  EXPECT_LT(sum / 20'000, 0.07) << "seed " << seed;
}

TEST(LossEstimator, RisesWithinABlockAndForgetsSlowly) {
  LossEstimator estimator;
  for (int i = 0; i < 10'000; ++i) estimator.OnPacket(false);
  for (int i = 0; i < 8; ++i) estimator.OnPacket(true);
  EXPECT_GT(estimator.loss(), 0.1);
  for (int i = 0; i < 600; ++i) estimator.OnPacket(false);
  EXPECT_GT(estimator.loss(), 0.004) << "the slow average remembers";
  EXPECT_LT(estimator.loss(), 0.008);
}

TEST(LossEstimator, ASpuriousLossIsTakenBack) {
  LossEstimator estimator;
  estimator.OnPacket(true);
  EXPECT_GT(estimator.loss(), 0);
  estimator.OnSpurious();
  EXPECT_EQ(estimator.loss(), 0);
  estimator.OnSpurious();
  EXPECT_EQ(estimator.loss(), 0) << "never below zero";
}

}  // namespace
}  // namespace longhaul::transport
