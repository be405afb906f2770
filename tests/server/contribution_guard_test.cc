#include "server/tensor/contribution_guard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/random.h"

namespace longhaul::server {
namespace {

using Verdict = ContributionGuard::Verdict;
using Values = std::vector<float>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A guard of so many chunks that has accepted 20 contributions of norm `norm` to each.
ContributionGuard Trained(uint32_t chunks, double factor, float norm) {
  ContributionGuard guard(chunks, 2, factor);
  for (int round = 0; round < 10; ++round) {
    for (uint32_t rank : {0u, 1u}) {
      for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
        EXPECT_EQ(guard.Check(rank, chunk, Values{0, norm}), Verdict::kOk);
      }
    }
  }
  return guard;
}

TEST(ContributionGuard, RefusesWhatIsNotFiniteWhereverItStands) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    for (size_t at : {size_t{0}, size_t{7}, size_t{16}}) {
      ContributionGuard guard(1, 1, 0);
      Values values(17, 1.0f);
      EXPECT_EQ(guard.Check(0, 0, values), Verdict::kOk);
      values[at] = bad;
      EXPECT_EQ(guard.Check(0, 0, values), Verdict::kNotFinite) << bad << " at " << at;
    }
  }
}

TEST(ContributionGuard, LargeButFiniteIsNotInfinity) {
  ContributionGuard guard(1, 1, 0);
  EXPECT_EQ(guard.Check(0, 0, Values{3e37f, -3e37f}), Verdict::kOk) << "its squares overflow, it does not";
  EXPECT_EQ(guard.refused(0), 0u);
}

TEST(ContributionGuard, JudgesWhatAContributionMovesTheModelBy) {
  ContributionGuard guard = Trained(1, 10, 1);
  EXPECT_EQ(guard.Check(0, 0, Values{0, 2}, 4, 10, 4), Verdict::kOk);
  EXPECT_EQ(guard.Check(0, 0, Values{0, 2}, 20, 11, 20), Verdict::kTooLarge) << "a usual norm, 20 times over";
  EXPECT_EQ(guard.Check(0, 0, Values{0, 2}, 20, 12, 1), Verdict::kOk) << "a policy's scale is not its weight";
}

TEST(ContributionGuard, AfterSomethingNotFiniteTheRestOfThatWindowIsRefused) {
  ContributionGuard guard(4, 2, 0);
  guard.BeginWindow(0);
  EXPECT_EQ(guard.Check(0, 0, Values{1}), Verdict::kOk);
  EXPECT_EQ(guard.Check(0, 1, Values{kNan}), Verdict::kNotFinite);
  EXPECT_EQ(guard.Check(0, 2, Values{1}), Verdict::kNotFinite);
  EXPECT_EQ(guard.refused(0), 2u);
  EXPECT_EQ(guard.Check(1, 2, Values{1}), Verdict::kOk) << "another worker's";
  guard.BeginWindow(0);
  EXPECT_EQ(guard.Check(0, 1, Values{1}), Verdict::kOk) << "its next push";
  EXPECT_EQ(guard.refused(0), 0u);
}

TEST(ContributionGuard, ANormFarAboveTheUsualIsRefusedAndTeachesNothing) {
  ContributionGuard guard = Trained(3, 10, 2);
  guard.BeginWindow(1);
  for (int again = 0; again < 50; ++again) {
    ASSERT_EQ(guard.Check(1, 1, Values{0, -21}), Verdict::kTooLarge) << again;
    if (again % 7 == 6) {
      ASSERT_EQ(guard.Check(0, 1, Values{0, 2}), Verdict::kOk) << "others go on as ever";
    }
  }
  EXPECT_NEAR(guard.last_excess(), 10.5, 0.01);
  EXPECT_EQ(guard.refused(1), 50u);
  EXPECT_EQ(guard.Check(1, 1, Values{0, 19}), Verdict::kOk);
  EXPECT_EQ(guard.Check(1, 2, Values{1e37f}), Verdict::kTooLarge);
}

TEST(ContributionGuard, ALevelThatEverybodyHasReachedBecomesTheUsualOne) {
  ContributionGuard guard = Trained(3, 10, 2);
  uint32_t round = 0;
  while (guard.Check(round % 2, 1, Values{1000}, 1, round) == Verdict::kTooLarge) ASSERT_LT(++round, 100u);
  EXPECT_EQ(round, 2u * ContributionGuard::kGivesWay) << "the bound goes from 20 to 200 to 2000";
  for (int again = 0; again < 50; ++again) {
    ASSERT_EQ(guard.Check(0, 1, Values{1000}), Verdict::kOk) << again;
  }
  EXPECT_EQ(guard.Check(0, 1, Values{20'000}), Verdict::kTooLarge);
}

TEST(ContributionGuard, EvenAFactorOfOneGivesWay) {
  ContributionGuard guard = Trained(1, 1, 2);
  uint64_t refused = 0;
  while (guard.Check(0, 0, Values{100}, 1, refused) == Verdict::kTooLarge) ASSERT_LT(++refused, 100u);
  EXPECT_EQ(refused, 6u * ContributionGuard::kGivesWay) << "2, 4, ... 128";
}

// One window, or a minority that is early in every round, is no level that all have reached.
TEST(ContributionGuard, ManyRefusalsBeforeTheHonestPushNeverMoveTheBound) {
  ContributionGuard guard(1, 17, 3);
  for (uint64_t round = 0; round < 100; ++round) {
    for (uint32_t liar = 0; round > 0 && liar < 8; ++liar) {
      for (int again = 0; again < 30; ++again) {
        ASSERT_EQ(guard.Check(liar, 0, Values{1e15f}, 1, round), Verdict::kTooLarge) << round;
      }
    }
    for (uint32_t rank = 8; rank < 17; ++rank) {
      ASSERT_EQ(guard.Check(rank, 0, Values{1}, 1, round), Verdict::kOk) << round;
    }
  }
}

TEST(ContributionGuard, OneWorkerAmongOthersNeverMovesTheBound) {
  ContributionGuard guard = Trained(1, 10, 2);
  for (int round = 0; round < 1000; ++round) {
    ASSERT_EQ(guard.Check(0, 0, Values{2}), Verdict::kOk);
    ASSERT_EQ(guard.Check(1, 0, Values{1e6f}), Verdict::kTooLarge) << round;
  }
}

// On the average of all ranks a liar pulls its own bound up: with a factor above the root of the ranks for
// ever.
TEST(ContributionGuard, ALiarThatGrowsSlowlyNeverMovesItsOwnBound) {
  ContributionGuard guard(4, 4, 3);
  float norm = 1;
  float largest = 0;
  for (int round = 0; round < 400; ++round, norm *= 1.02f) {
    for (uint32_t chunk = 0; chunk < 4; ++chunk) {
      for (uint32_t rank = 0; rank < 3; ++rank) ASSERT_EQ(guard.Check(rank, chunk, Values{1}), Verdict::kOk);
      if (guard.Check(3, chunk, Values{norm}) == Verdict::kOk) largest = norm;
    }
  }
  EXPECT_GT(norm, 1000);
  EXPECT_LE(largest, 3) << "three times the others'";
  EXPECT_GT(largest, 2.9);
}

// With its own word among them the middle one would be its own: the others' lower one bounds it.
TEST(ContributionGuard, BetweenTwoOthersALiarIsNotTheMiddle) {
  ContributionGuard guard(1, 3, 3);
  float norm = 1;
  float largest = 0;
  for (int round = 0; round < 400; ++round, norm *= 1.02f) {
    ASSERT_EQ(guard.Check(0, 0, Values{1}), Verdict::kOk);
    ASSERT_EQ(guard.Check(1, 0, Values{2.9f}), Verdict::kOk);
    if (guard.Check(2, 0, Values{norm}) == Verdict::kOk) largest = norm;
  }
  EXPECT_LE(largest, 3) << "three times the lower of the others'";
}

TEST(ContributionGuard, TwoLiarsOfFiveDoNotMoveEachOthersBound) {
  ContributionGuard guard(1, 5, 3);
  float norm = 1;
  float largest = 0;
  for (int round = 0; round < 400; ++round, norm *= 1.02f) {
    for (uint32_t rank = 0; rank < 3; ++rank) ASSERT_EQ(guard.Check(rank, 0, Values{1}), Verdict::kOk);
    for (uint32_t rank = 3; rank < 5; ++rank) {
      if (guard.Check(rank, 0, Values{norm}) == Verdict::kOk) largest = norm;
    }
  }
  EXPECT_LE(largest, 3);
}

TEST(ContributionGuard, InTheFirstRoundALiarIsJudgedOnceTwoOthersHavePushed) {
  ContributionGuard guard(1, 4, 3);
  EXPECT_EQ(guard.Check(0, 0, Values{1}), Verdict::kOk);
  EXPECT_EQ(guard.Check(1, 0, Values{2}), Verdict::kOk);
  EXPECT_EQ(guard.Check(3, 0, Values{1e6f}), Verdict::kTooLarge);
  EXPECT_EQ(guard.Check(2, 0, Values{1}), Verdict::kOk);
  ContributionGuard first(1, 4, 3);
  EXPECT_EQ(first.Check(3, 0, Values{1e6f}), Verdict::kOk)
      << "before all others: only robust aggregation helps";
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(first.Check(rank, 0, Values{1}), Verdict::kOk);
  for (int round = 1; round < 20; ++round) {
    EXPECT_EQ(first.Check(3, 0, Values{1e6f}), Verdict::kTooLarge) << round;
    for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(first.Check(rank, 0, Values{1}), Verdict::kOk);
  }
}

// What counts is norm times weight, beside what the others' norms times their weights are.
TEST(ContributionGuard, AHeavyRankWithUsualNormsAmongLightOnesIsJudgedByBoth) {
  ContributionGuard guard(1, 3, 10);
  for (uint64_t round = 0; round < 20; ++round) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      ASSERT_EQ(guard.Check(rank, 0, Values{1}, 1, round, 1), Verdict::kOk);
    }
    ASSERT_EQ(guard.Check(2, 0, Values{1}, 9, round, 9), Verdict::kOk);
    ASSERT_EQ(guard.Check(2, 0, Values{1}, 11, round, 11), Verdict::kTooLarge);
  }
}

TEST(ContributionGuard, NothingIsJudgedBeforeEnoughWasSeen) {
  ContributionGuard guard(1, 1, 2);
  for (int seen = 0; seen < ContributionGuard::kLearned; ++seen) {
    EXPECT_EQ(guard.Check(0, 0, Values{seen % 2 == 0 ? 1.0f : 1000.0f}), Verdict::kOk) << seen;
  }
  EXPECT_EQ(guard.Check(0, 0, Values{1e6f}), Verdict::kTooLarge);
}

TEST(ContributionGuard, APartThatHadNoGradientYetMayGetOne) {
  ContributionGuard guard(4, 1, 10);
  for (int round = 0; round < 20; ++round) {
    for (uint32_t chunk = 0; chunk < 3; ++chunk) (void)guard.Check(0, chunk, Values{1});
    (void)guard.Check(0, 3, Values{0});
  }
  EXPECT_EQ(guard.Check(0, 3, Values{1}), Verdict::kOk) << "as large as elsewhere in the tensor";
  EXPECT_EQ(guard.Check(0, 3, Values{100}), Verdict::kTooLarge);
  ContributionGuard zero = Trained(1, 10, 0);
  EXPECT_EQ(zero.Check(0, 0, Values{5}), Verdict::kOk) << "all zero so far: nothing is known";
}

TEST(ContributionGuard, ALargeChunkPositionAmongSmallOnesIsUsual) {
  ContributionGuard guard(100, 1, 4);
  for (int round = 0; round < 20; ++round) {
    for (uint32_t chunk = 0; chunk < 100; ++chunk) {
      ASSERT_EQ(guard.Check(0, chunk, Values{chunk == 7 ? 50.0f : 1.0f}), Verdict::kOk) << round;
    }
  }
  EXPECT_EQ(guard.Check(0, 7, Values{150}), Verdict::kOk);
  EXPECT_EQ(guard.Check(0, 8, Values{50}), Verdict::kTooLarge);
}

TEST(ContributionGuard, GradientsThatGrowStepByStepAreFollowed) {
  ContributionGuard guard(1, 1, 3);
  float norm = 1;
  for (int round = 0; round < 300; ++round, norm *= 1.03f) {
    ASSERT_EQ(guard.Check(0, 0, Values{norm}), Verdict::kOk) << "round " << round << ", norm " << norm;
  }
  EXPECT_GT(norm, 1000);
}

TEST(ContributionGuard, WhatWouldOverflowTheSumIsRefusedAndTheRestOfTheWindowIsNot) {
  ContributionGuard guard(2, 4, 0);
  EXPECT_EQ(guard.Check(0, 0, Values{1, 3e38f}), Verdict::kOverflows) << "finite, but four of them are not";
  EXPECT_EQ(guard.Check(0, 1, Values{1e30f}, 1e6f), Verdict::kOk);
  EXPECT_EQ(guard.Check(1, 0, Values{1e33f}, 1e6f), Verdict::kOverflows) << "weight times value";
  EXPECT_EQ(guard.Check(2, 0, Values{1, 3e38f}, 1e-6f), Verdict::kOverflows)
      << "the mean divides by the weights";
  EXPECT_EQ(guard.refused(0), 1u);
}

// As Trained, of one chunk under a policy that repays: both ranks have settled rounds 0 to 9.
ContributionGuard Repaid(double factor, float norm) {
  ContributionGuard guard(1, 2, factor, /*repays=*/true);
  for (uint64_t round = 0; round < 10; ++round) {
    for (uint32_t rank : {0u, 1u}) EXPECT_EQ(guard.Check(rank, 0, Values{norm}, 1, round), Verdict::kOk);
  }
  return guard;
}

TEST(ContributionGuard, ADebtIsJudgedByTheRoundsThatItCanBeOf) {
  ContributionGuard guard = Repaid(10, 2);
  EXPECT_EQ(guard.Check(1, 0, Values{59}, 1, 12), Verdict::kOk) << "three gradients: up to 60";
  EXPECT_EQ(guard.Check(1, 0, Values{21}, 1, 13), Verdict::kTooLarge) << "nothing is owed any more";
  EXPECT_EQ(guard.Check(1, 0, Values{21}, 1, 14), Verdict::kTooLarge)
      << "what was refused is not owed either";
  EXPECT_EQ(guard.Check(1, 0, Values{41}, 1, 16), Verdict::kTooLarge) << "two gradients: up to 40";
  EXPECT_EQ(guard.Check(0, 0, Values{21}, 1, 10), Verdict::kTooLarge) << "the other rank is judged as ever";
}

TEST(ContributionGuard, DebtsTeachNothing) {
  ContributionGuard guard = Repaid(10, 2);
  for (uint64_t round = 19; round < 500; round += 10) {
    ASSERT_EQ(guard.Check(1, 0, Values{150}, 1, round), Verdict::kOk) << round;
  }
  EXPECT_EQ(guard.Check(0, 0, Values{21}, 1, 10), Verdict::kTooLarge);
}

TEST(ContributionGuard, DebtsHaveABound) {
  ContributionGuard guard = Repaid(10, 2);
  const float most = 20.0f * ContributionGuard::kMostGradients;
  EXPECT_EQ(guard.Check(0, 0, Values{most * 1.01f}, 1, 1'000'000), Verdict::kTooLarge);
  EXPECT_EQ(guard.Check(1, 0, Values{most * 0.99f}, 1, 1'000'000), Verdict::kOk);
}

TEST(ContributionGuard, AnotherWorkerOfARankOwesNothing) {
  ContributionGuard guard = Repaid(10, 2);
  guard.OnMember(1, 30);
  EXPECT_EQ(guard.Check(1, 0, Values{21}, 1, 30), Verdict::kTooLarge);
  ContributionGuard forgets(1, 2, 10);
  for (uint64_t round = 0; round < 10; ++round) (void)forgets.Check(0, 0, Values{2}, 1, round);
  EXPECT_EQ(forgets.Check(0, 0, Values{21}, 1, 30), Verdict::kTooLarge) << "a policy that repays nothing";
}

// Normal noise of one scale: no false alarm in many rounds at a factor of 3.
TEST(ContributionGuard, NoiseAloneIsNeverRefused) {
  const uint64_t seed = 5;
  Random random(seed);
  ContributionGuard guard(8, 4, 3);
  Values values(64);
  for (int round = 0; round < 500; ++round) {
    for (uint32_t rank = 0; rank < 4; ++rank) {
      for (uint32_t chunk = 0; chunk < 8; ++chunk) {
        for (float& v : values) v = static_cast<float>(random.Normal());
        ASSERT_EQ(guard.Check(rank, chunk, values), Verdict::kOk) << "round " << round << ", seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace longhaul::server
