#include "transport/core/window/loss_estimator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/random.h"
#include "wan/link_model.h"

namespace longhaul::transport {
namespace {

void Tell(LossEstimator* estimator, uint64_t place, bool lost) {
  lost ? estimator->OnLost(place) : estimator->OnAcked(place);
}

void Feed(LossEstimator* estimator, wan::LossProcess* path, int packets) {
  for (int i = 0; i < packets; ++i) Tell(estimator, estimator->OnSent(), path->Next());
}

// The same definitions over a list of fates, without decay of the last group's weight: slow and obvious.
struct Plain {
  double s0 = 0, s1 = 0, n2 = 0, s2 = 0, lost = 0, runs = 0;
  Plain(const std::vector<bool>& fates, double weight) {
    for (size_t i = 0; i < fates.size(); ++i) {
      if (fates[i]) ++lost;
      if (fates[i] && (i == 0 || !fates[i - 1])) ++runs;
      if ((i + 1) % LossEstimator::kGroup != 0) continue;
      const auto first = fates.begin() + static_cast<std::ptrdiff_t>(i + 1 - LossEstimator::kGroup);
      const auto x =
          static_cast<double>(std::count(first, fates.begin() + static_cast<std::ptrdiff_t>(i + 1), true));
      const double n = LossEstimator::kGroup;
      s0 = s0 * (1 - weight) + n;
      s1 = s1 * (1 - weight) + x;
      n2 = n2 * (1 - weight) + n * (n - 1);
      s2 = s2 * (1 - weight) + x * (x - 1);
      lost *= 1 - LossEstimator::kSlowWeight;
      runs *= 1 - LossEstimator::kSlowWeight;
    }
  }
};

void ExpectLike(const LossEstimator& estimator, const std::vector<bool>& fates, double tolerance) {
  const Plain fast(fates, LossEstimator::kFastWeight);
  const Plain slow(fates, LossEstimator::kSlowWeight);
  const double p = slow.s1 / slow.s0;
  EXPECT_NEAR(estimator.loss(), std::max(fast.s1 / fast.s0, p), tolerance);
  const double rho = p > 0 ? (slow.s2 / slow.n2 - p * p) / (p * (1 - p)) : 0;
  EXPECT_NEAR(estimator.rho(), std::clamp(rho, 0.0, 0.5), 10 * tolerance);
  EXPECT_NEAR(estimator.mean_burst(), slow.runs > 0 ? slow.lost / slow.runs : 1, 100 * tolerance);
}

TEST(LossEstimator, IsZeroBeforeTheFirstLoss) {
  LossEstimator estimator;
  EXPECT_EQ(estimator.loss(), 0);
  for (int i = 0; i < 1000; ++i) estimator.OnAcked(estimator.OnSent());
  EXPECT_EQ(estimator.loss(), 0);
  EXPECT_EQ(estimator.margin(), 0);
  EXPECT_EQ(estimator.rho(), 0);
  EXPECT_EQ(estimator.mean_burst(), 1);
  EXPECT_EQ(estimator.groups(), 50u);
}

TEST(LossEstimator, TheFirstLossesCountInFull) {
  LossEstimator estimator;
  for (int i = 0; i < 10; ++i) Tell(&estimator, estimator.OnSent(), i % 5 == 0);
  EXPECT_NEAR(estimator.loss(), 0.2, 1e-9) << "before the first group is complete";
  EXPECT_GT(estimator.margin(), 0.1) << "ten packets say little";
}

TEST(LossEstimator, SettlesAroundIndependentLoss) {
  for (const double loss : {0.01, 0.05, 0.2}) {
    wan::LossProcess path(loss, 0, Random(7));
    LossEstimator estimator;
    Feed(&estimator, &path, 40'000);
    // The larger of two unbiased averages, and a standard error on top: a little above the truth, the safe
    // side.
    EXPECT_GT(estimator.loss() + estimator.margin(), loss * 0.95);
    EXPECT_LT(estimator.loss() + estimator.margin(), loss * 1.3 + 0.005);
    EXPECT_LT(estimator.rho(), 0.01) << loss;
    EXPECT_NEAR(estimator.mean_burst(), 1 / (1 - loss), 0.05) << loss;
  }
}

TEST(LossEstimator, SeesBursts) {
  for (const double burst : {3.0, 10.0}) {
    for (const double loss : {0.01, 0.05}) {
      wan::LossProcess path(loss, burst, Random(11));
      LossEstimator estimator;
      Feed(&estimator, &path, 100'000);
      EXPECT_NEAR(estimator.mean_burst(), burst, 0.2 * burst) << loss;
      // Gilbert-Elliott: two packets j apart are correlated by r^j; the mean over the pairs of a group of 20.
      const double r = (1 - 1 / burst - loss) / (1 - loss);
      double expected = 0;
      for (int j = 1; j < 20; ++j) expected += (20 - j) * std::pow(r, j) / 190;
      EXPECT_NEAR(estimator.rho(), std::min(expected, 0.5), 0.06) << burst << " " << loss;
    }
  }
}

TEST(LossEstimator, FollowsAnIncreaseAndForgetsSlowly) {
  LossEstimator estimator;
  for (int i = 0; i < 20'000; ++i) estimator.OnAcked(estimator.OnSent());
  for (int i = 0; i < 500; ++i) Tell(&estimator, estimator.OnSent(), i % 10 == 0);
  EXPECT_GT(estimator.loss(), 0.03) << "25 groups of 64";
  for (int i = 0; i < 5000; ++i) estimator.OnAcked(estimator.OnSent());
  EXPECT_GT(estimator.loss(), 0.0015) << "the slow memory remembers";
  EXPECT_LT(estimator.loss(), 0.004);
}

TEST(LossEstimator, TheOrderInWhichFatesBecomeKnownDoesNotMatter) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    wan::LossProcess path(0.05, 4, Random(seed));
    LossEstimator estimator;
    std::vector<bool> fates;
    std::vector<uint64_t> unknown;
    const auto tell_some = [&](size_t keep) {
      while (unknown.size() > keep) {
        std::swap(unknown[random.Below(unknown.size())], unknown.back());
        Tell(&estimator, unknown.back(), fates[unknown.back()]);
        unknown.pop_back();
      }
    };
    for (int i = 0; i < 5000; ++i) {
      unknown.push_back(estimator.OnSent());
      fates.push_back(path.Next());
      tell_some(random.Below(800));
    }
    tell_some(0);
    ExpectLike(estimator, fates, 1e-9);
    if (HasFailure()) {
      ADD_FAILURE() << "seed " << seed;
      return;
    }
  }
}

TEST(LossEstimator, SpuriousLossesAreTakenBack) {
  // Whole runs are declared lost and arrive later, some of them beside true losses.
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    wan::LossProcess path(0.05, 3, Random(seed));
    LossEstimator estimator;
    std::vector<bool> fates;
    std::vector<uint64_t> late;
    for (int i = 0; i < 5000; ++i) {
      const uint64_t place = estimator.OnSent();
      const bool lost = path.Next();
      const bool spurious = !lost && (place / 30) % 7 == 3;
      fates.push_back(lost);
      Tell(&estimator, place, lost || spurious);
      if (spurious) late.push_back(place);
      while (!late.empty() && late.front() + 100 < place) {
        const size_t chosen = random.Below(std::min<size_t>(late.size(), 20));
        estimator.OnSpurious(late[chosen]);
        estimator.OnSpurious(late[chosen]);  // once is all
        late.erase(late.begin() + static_cast<std::ptrdiff_t>(chosen));
      }
    }
    for (const uint64_t place : late) estimator.OnSpurious(place);
    // Runs that were joined and parted in different groups fade by their own group: almost the same.
    ExpectLike(estimator, fates, 1e-3);
    if (HasFailure()) {
      ADD_FAILURE() << "seed " << seed;
      return;
    }
  }
}

TEST(LossEstimator, ALossUndoneLeavesNothing) {
  LossEstimator estimator;
  const uint64_t first = estimator.OnSent();
  estimator.OnLost(first);
  EXPECT_GT(estimator.loss(), 0);
  estimator.OnSpurious(first);
  EXPECT_EQ(estimator.loss(), 0);
  estimator.OnSpurious(first);
  EXPECT_EQ(estimator.loss(), 0) << "never below zero";
  EXPECT_EQ(estimator.mean_burst(), 1);
}

TEST(LossEstimator, AFateThatNeverComesDoesNotStopIt) {
  LossEstimator estimator;
  (void)estimator.OnSent();
  for (size_t i = 0; i < LossEstimator::kMaxMemory; ++i) Tell(&estimator, estimator.OnSent(), i % 10 == 0);
  EXPECT_GE(estimator.abandoned(), 1u);
  EXPECT_NEAR(estimator.loss(), 0.1, 0.01);
  estimator.OnLost(0);  // too late to mean anything
  EXPECT_NEAR(estimator.loss(), 0.1, 0.01);
}

}  // namespace
}  // namespace longhaul::transport
