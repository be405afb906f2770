#include "transport/core/window/fec_policy.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "transport/core/window/loss_estimator.h"

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

// Against drawing how often a symbol has to be sent again.
TEST(ExpectedOverrun, IsTheMeanTimeBeyondTheSlack) {
  Random random(1);
  for (const double p : {0.01, 0.2}) {
    for (const double slack : {0.0, 0.4, 1.0, 2.5}) {
      const int k = 20;
      const double again = 1 - std::pow(1 - p, std::max(1.0, k * p));
      double sum = 0;
      const int draws = 200'000;
      for (int i = 0; i < draws; ++i) {
        double recoveries = 1;
        while (random.Chance(again)) ++recoveries;
        sum += std::max(0.0, recoveries - slack);
      }
      EXPECT_NEAR(ExpectedOverrun(slack, p, k), sum / draws, 0.02) << p << " " << slack;
    }
  }
}

TEST(RepairSymbolsFor, GivesNoneWithoutLoss) { EXPECT_EQ(RepairSymbolsFor(20, 12, 0, 0, 1000), 0); }

TEST(RepairSymbolsFor, IsTheFirstCountWhoseSuccessorGainsLessThanItCosts) {
  for (const double p : {0.005, 0.01, 0.02, 0.05, 0.1}) {
    for (const double packets : {10.0, 100.0, 1000.0, 10'000.0}) {
      const int m = RepairSymbolsFor(20, 12, p, 0, packets);
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
  EXPECT_GE(RepairSymbolsFor(20, 12, 0.20, 0, 20), 6);
  EXPECT_GE(RepairSymbolsFor(20, 12, 0.30, 0, 100), 10);
}

TEST(RepairSymbolsFor, GrowsWithLossAndWithTheCostOfARecovery) {
  EXPECT_EQ(RepairSymbolsFor(20, 12, 0.01, 0, 1000), 3);
  EXPECT_LT(RepairSymbolsFor(20, 12, 0.01, 0, 1000), RepairSymbolsFor(20, 12, 0.05, 0, 1000));
  EXPECT_LT(RepairSymbolsFor(20, 12, 0.02, 0, 20), RepairSymbolsFor(20, 12, 0.02, 0, 2000));
}

TEST(RepairSymbolsFor, RespectsItsBound) {
  EXPECT_EQ(RepairSymbolsFor(20, 1, 0.05, 0, 10'000), 1);
  EXPECT_EQ(RepairSymbolsFor(20, 0, 0.05, 0, 10'000), 0);
  EXPECT_EQ(RepairSymbolsFor(20, 12, 0.05, 0, 0), 0) << "a recovery as cheap as one packet needs no repair";
}

// Slow and obvious: the integral of the binomial over the beta distribution of the loss, by P(i) = C(n, i)
// B(i + a, n - i + b) / B(a, b).
double BetaBinomialByGamma(int k, int m, double p, double rho) {
  const int n = k + m;
  const double s = 1 / rho - 1, a = p * s, b = (1 - p) * s;
  const auto log_beta = [](double x, double y) {
    return std::lgamma(x) + std::lgamma(y) - std::lgamma(x + y);
  };
  double sum = 0;
  for (int i = m + 1; i <= n; ++i) {
    const double log_choose = std::lgamma(n + 1) - std::lgamma(i + 1) - std::lgamma(n - i + 1);
    sum += std::exp(log_choose + log_beta(i + a, n - i + b) - log_beta(a, b));
  }
  return sum;
}

TEST(BlockFailureProbability, IsABetaBinomialUnderCorrelation) {
  for (const int k : {1, 8, 20, 24}) {
    for (const int m : {0, 1, 4, 8}) {
      for (const double p : {0.001, 0.02, 0.2, 0.7}) {
        for (const double rho : {0.001, 0.05, 0.5}) {
          const double expected = BetaBinomialByGamma(k, m, p, rho);
          EXPECT_NEAR(BlockFailureProbability(k, m, p, rho), expected, 1e-7 * expected + 1e-15)
              << k << "+" << m << " at " << p << " rho " << rho;
        }
      }
    }
  }
}

TEST(BlockFailureProbability, IsPolyasUrnDrawnByHand) {
  // Three symbols, p = 0.2, rho = 0.25: s = 3, a = 0.6, b = 2.4. Two lost of three: 3 * a (a + 1) b / (3 * 4
  // * 5).
  const double two = 3 * 0.6 * 1.6 * 2.4 / 60, three = 0.6 * 1.6 * 2.6 / 60;
  EXPECT_NEAR(BlockFailureProbability(2, 1, 0.2, 0.25), two + three, 1e-12);
}

TEST(BlockFailureProbability, GoesOverIntoTheBinomial) {
  for (const double p : {0.001, 0.05, 0.5}) {
    const double binomial = BlockFailureProbability(20, 4, p);
    for (const double rho : {1e-8, 1e-12, 1e-300, 0.0, -1.0}) {
      EXPECT_NEAR(BlockFailureProbability(20, 4, p, rho), binomial, 1e-3 * binomial) << p << " " << rho;
    }
  }
}

TEST(BlockFailureProbability, IsAProbabilityWhateverItIsGiven) {
  for (const double p : {-1.0, 0.0, 1e-300, 0.3, 1 - 1e-16, 1.0, 2.0}) {
    for (const double rho : {-1.0, 0.0, 1e-300, 0.5, 1.0, 7.0}) {
      for (int m = 0; m <= 24; ++m) {
        const double f = BlockFailureProbability(8, m, p, rho);
        EXPECT_TRUE(f >= 0 && f <= 1) << p << " " << rho << " " << m;
      }
    }
  }
}

TEST(BlockFailureProbability, BurstsMakeItWorse) {
  EXPECT_GT(BlockFailureProbability(20, 4, 0.02, 0.1), 50 * BlockFailureProbability(20, 4, 0.02));
}

TEST(LossModel, SpacingTakesBurstsApart) {
  // A Gilbert-Elliott path with bursts of 10 and 3 % loss: r = 0.897.
  const LossModel bursts{.p = 0.03, .rho = 0.45, .mean_burst = 10};
  EXPECT_NEAR(bursts.RhoAt(LossEstimator::kGroup, 1), 0.45, 1e-9) << "neighbours: as measured";
  EXPECT_LT(bursts.RhoAt(20, 10), 0.06);
  EXPECT_LT(bursts.RhoAt(20, 40), 0.002) << "four bursts apart they are all but independent";
  double last = 1;
  for (int spacing = 1; spacing <= 64; ++spacing) {
    const double rho = bursts.RhoAt(20, spacing);
    EXPECT_LT(rho, last);
    last = rho;
  }
}

TEST(LossModel, WhatBurstsDoNotExplainStays) {
  // Single losses, but more of them at some times than at others.
  const LossModel slow{.p = 0.03, .rho = 0.1, .mean_burst = 1 / 0.97};
  EXPECT_NEAR(slow.RhoAt(20, 1), 0.1, 1e-9);
  EXPECT_NEAR(slow.RhoAt(20, 64), 0.1, 1e-9);
  EXPECT_EQ((LossModel{.p = 0.03, .rho = 0, .mean_burst = 5}.RhoAt(20, 1)), 0);
  EXPECT_EQ((LossModel{.p = 0, .rho = 0.3, .mean_burst = 5}.RhoAt(20, 1)), 0);
}

TEST(AdvisedDepth, IsFourBurstsWithinItsBounds) {
  EXPECT_EQ(AdvisedDepth({}, 20, 200), kMinFecDepth);
  EXPECT_EQ(AdvisedDepth({.p = 0.05, .rho = 0.001, .mean_burst = 1 / 0.95}, 20, 200), kMinFecDepth)
      << "independent losses meet by chance";
  EXPECT_EQ(AdvisedDepth({.p = 0.01, .rho = 0.4, .mean_burst = 10}, 20, 200), 40);
  EXPECT_EQ(AdvisedDepth({.p = 0.01, .rho = 0.5, .mean_burst = 1e9}, 20, 200), kMaxFecDepth);
}

TEST(AdvisedDepth, SpreadsAsFarAsItMayWhereNoRedundancySuffices) {
  // Single losses in spells: runs tell nothing of their length.
  EXPECT_EQ(AdvisedDepth({.p = 0.03, .rho = 0.3, .mean_burst = 1 / 0.97}, 20, 200), kMaxFecDepth);
  // Spells too weak to matter, and loss that no interleaver makes repairable.
  EXPECT_EQ(AdvisedDepth({.p = 0.03, .rho = 0.002, .mean_burst = 1 / 0.97}, 20, 200), kMinFecDepth);
  EXPECT_EQ(AdvisedDepth({.p = 0.4, .rho = 0.3, .mean_burst = 1 / 0.6}, 20, 200), kMinFecDepth);
}

TEST(RepairHold, RisesAtOnceAndFallsByOneEachRoundTrip) {
  const Duration rtt = std::chrono::milliseconds(40);
  const auto at = [&](double round_trips) {
    return Instant() + Duration(static_cast<int64_t>(round_trips * static_cast<double>(rtt.count())));
  };
  RepairHold hold;
  hold.Update(2, at(1), rtt);
  EXPECT_EQ(hold.extra(), 0);
  hold.Update(6, at(1.1), rtt);
  EXPECT_EQ(hold.extra(), 0) << "at once";
  hold.Update(3, at(1.2), rtt);
  EXPECT_EQ(hold.extra(), 3) << "six are held";
  hold.Update(3, at(2.2), rtt);
  EXPECT_EQ(hold.extra(), 2);
  for (int i = 0; i < 100; ++i) hold.Update(3, at(2.2 + 0.01 * i), rtt);
  EXPECT_EQ(hold.extra(), 1) << "however often it is asked";
  hold.Update(3, at(60), rtt);
  EXPECT_EQ(hold.extra(), 0);
  hold.Update(0, at(60), Duration(0));
  EXPECT_GE(hold.extra(), 0);
}

}  // namespace
}  // namespace longhaul::transport
