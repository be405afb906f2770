// Throughput T(l) and delay D(l), and the best loss by them. Rounds of a path with l0 = 0.1 and C = 100.
#include "transport/core/rate/loss_curves.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

namespace longhaul::transport {
namespace {

using Verdict = LossCurves::Verdict;
using Function = std::function<double(double)>;

class Curves : public testing::Test {
 protected:
  Curves() {
    hinge_.floor = 0.1;
    hinge_.capacity = 100;
    hinge_.noise = 0.09;
  }

  // u: how far above C, 0 at C and 1 at 125. throughput: share of the plateau; delay: s.
  void Add(double u, double throughput, double delay, double loss_rise) {
    const double excess = 0.2 * u;
    const double s = 100 / (1 - excess);
    rounds_.push_back({.sent = s,
                       .yield = throughput * 90 / s,
                       .loss = 0.1 + loss_rise * excess,
                       .packets = 200,
                       .queue = delay});
  }

  LossCurves Fit() const {
    std::vector<WeightedRound> weighted;
    for (const RememberedRound& r : rounds_) weighted.push_back({&r, r.packets});
    return FitLossCurves(hinge_, weighted);
  }

  LossCurves FitGrid(const Function& throughput, const Function& delay, double loss_rise = 1) {
    for (int i = 0; i < 60; ++i) {
      const double u = (i % 11) / 10.0;
      Add(u, throughput(u), delay(u), loss_rise);
    }
    return Fit();
  }

  PathHinge hinge_;
  std::vector<RememberedRound> rounds_;
};

TEST_F(Curves, AreTheQuadraticsTheyWereMadeOf) {
  const LossCurves c = FitGrid([](double u) { return 0.9 + 0.2 * u - 0.1 * u * u; },
                               [](double u) { return 0.001 + 0.002 * u + 0.01 * u * u; });
  ASSERT_EQ(c.verdict, Verdict::kUsable);
  EXPECT_NEAR(c.first, 0.1, 1e-9);
  EXPECT_NEAR(c.last, 0.3, 1e-9);
  EXPECT_NEAR(c.throughput.At(0.5), 0.975, 1e-9);
  EXPECT_NEAR(c.delay.At(0.5), 0.0045, 1e-9);
  EXPECT_FALSE(c.delay_saturates);
}

TEST_F(Curves, TheBestLossIsWhereTheGainEqualsThePrice) {
  // ln T - 0.5 ln(1 + D / 0.04) with both from the test above: the maximum by a fine search.
  const auto throughput = [](double u) { return 0.9 + 0.2 * u - 0.1 * u * u; };
  const auto delay = [](double u) { return 0.001 + 0.002 * u + 0.01 * u * u; };
  const LossCurves c = FitGrid(throughput, delay);
  double best = 0, best_value = -1e9;
  for (double u = 0; u <= 1; u += 1e-4) {
    const double value = std::log(throughput(u)) - 0.5 * std::log1p(delay(u) / 0.04);
    if (value > best_value) {
      best_value = value;
      best = u;
    }
  }
  EXPECT_GT(best, 0.1);
  EXPECT_LT(best, 0.9);
  EXPECT_NEAR(BestLoss(c, 0.1, 0.3, 0.5, 0.04), 0.1 + 0.2 * best, 0.2 / 48);
}

TEST_F(Curves, StayWithinTheBoundsAndTheLossesSeen) {
  const LossCurves c = FitGrid([](double u) { return 0.5 + 0.5 * u; }, [](double) { return 0.0; });
  ASSERT_EQ(c.verdict, Verdict::kUsable);
  EXPECT_NEAR(BestLoss(c, 0.11, 0.2, 0.5, 0.04), 0.2, 1e-9)
      << "throughput rises all the way: the budget binds";
  EXPECT_NEAR(BestLoss(c, 0.11, 0.9, 0.5, 0.04), 0.3, 1e-9) << "nothing was seen beyond";
  EXPECT_NEAR(BestLoss(c, 0.4, 0.5, 0.5, 0.04), 0.4, 1e-9) << "an empty range is its lower end";
}

TEST_F(Curves, ThroughputBeyondThePlateauIsNoGain) {
  const LossCurves c = FitGrid([](double u) { return 0.9 + 0.4 * u; }, [](double) { return 0.0; });
  EXPECT_NEAR(BestLoss(c, 0.1, 0.3, 0.5, 0.04), 0.15, 0.01) << "the plateau is reached a quarter of the way";
}

TEST_F(Curves, ConvexThroughputIsRefused) {
  const LossCurves c = FitGrid([](double u) { return 0.7 + 0.3 * u * u; }, [](double) { return 0.0; });
  EXPECT_EQ(c.verdict, Verdict::kBadCurvature);
}

TEST_F(Curves, ASaturatedDelayBecomesAStraightLine) {
  const LossCurves c =
      FitGrid([](double u) { return 0.9 + 0.1 * u; }, [](double u) { return u > 0 ? 0.004 : 0.0; });
  ASSERT_EQ(c.verdict, Verdict::kUsable);
  EXPECT_TRUE(c.delay_saturates);
  EXPECT_EQ(c.delay.c[2], 0);
  EXPECT_GT(c.delay.c[1], 0);
}

TEST_F(Curves, LossThatDoesNotRiseWithTheRateIsNoArgument) {
  EXPECT_EQ(FitGrid([](double) { return 1.0; }, [](double u) { return 0.01 * u; }, 0).verdict,
            Verdict::kFlat);
}

TEST_F(Curves, TwoRatesAreNotEnoughForAQuadratic) {
  for (int i = 0; i < 40; ++i) Add(i % 2, 0.95 + 0.05 * (i % 2), 0.01 * (i % 2), 1);
  EXPECT_EQ(Fit().verdict, Verdict::kIllConditioned);
}

}  // namespace
}  // namespace longhaul::transport
