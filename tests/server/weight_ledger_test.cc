#include "server/member/weight_ledger.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "base/random.h"

namespace longhaul::server {
namespace {

using Weights = std::vector<float>;

constexpr double kTimes = 3;

// A tensor's rounds: what is said, what counts, and the shares.
class Rounds {
 public:
  explicit Rounds(std::vector<uint32_t> stands_for, double times = kTimes)
      : ledger_(times, stands_for), stands_for_(stands_for), members_(stands_for.size(), true) {
    for (uint32_t rank = 0; rank < stands_for.size(); ++rank) ledger_.Expect(rank, stands_for[rank]);
  }

  // One round; rank i says said[i], or does not push where it is 0.
  Weights Round(const Weights& said) {
    ledger_.Begin(members_);
    Weights counted;
    for (uint32_t rank = 0; rank < said.size(); ++rank) {
      counted.push_back(said[rank] > 0 ? ledger_.Count(rank, said[rank]) : 0.0f);
    }
    shares_ = ledger_.End();
    return counted;
  }
  void Usually(const Weights& said, int rounds = 50) {
    for (int round = 0; round < rounds; ++round) Round(said);
  }
  // What the rank's share may be in a round of all.
  double Cap(uint32_t rank, double times = kTimes) const {
    return WeightLedger::Share(times, stands_for_[rank],
                               std::accumulate(stands_for_.begin(), stands_for_.end(), 0.0));
  }
  double share(uint32_t rank) const { return shares_[rank]; }
  std::vector<bool>& members() { return members_; }
  WeightLedger& ledger() { return ledger_; }

 private:
  WeightLedger ledger_;
  std::vector<uint32_t> stands_for_;
  std::vector<bool> members_;
  std::vector<double> shares_;
};

constexpr float kHuge = 1e9f;

TEST(WeightLedger, NoneCountsForMoreThanItsShare) {
  EXPECT_EQ(Rounds({1, 1, 1, 1}).Round({1, 1, 1, kHuge}), (Weights{1, 1, 1, 3})) << "as three others";
  EXPECT_EQ(Rounds({1, 1, 1, 1}).Round({1, 2, 3, 3}), (Weights{1, 2, 3, 3}))
      << "honest shards are left alone";
  EXPECT_EQ(Rounds({1}).Round({kHuge}), Weights{kHuge}) << "alone";
  EXPECT_EQ(Rounds({1, 1}).Round({1, kHuge}), (Weights{1, 3}));
  const double none = std::numeric_limits<double>::infinity();
  EXPECT_EQ(Rounds({1, 1}, none).Round({1, kHuge}), (Weights{1, kHuge}));
  EXPECT_EQ(Rounds({1, 1, 1}, 1).Round({2, 1, 4}), (Weights{1, 1, 1})) << "an even share for each";
}

TEST(WeightLedger, AWeightThatJumpsInMidJobCountsByWhatTheOthersUsuallySay) {
  Rounds rounds({1, 1, 1, 1});
  rounds.Usually({60, 64, 70, 64});
  for (int round = 0; round < 100; ++round) {
    const Weights counted = rounds.Round({60, 64, 70, kHuge});
    ASSERT_LE(rounds.share(3), rounds.Cap(3) + 1e-6) << round;
    ASSERT_NEAR(counted[3], 3 * 64, 2.1) << "three times the median, or the mean, of the others";
  }
}

// By the median alone it would count as 3, which is more than half of all.
TEST(WeightLedger, AmongOthersOfWhomOneIsLightALiarStillHasItsShareOnly) {
  Rounds rounds({1, 1, 1, 1});
  rounds.Usually({0.1f, 1, 1, 1});
  EXPECT_FLOAT_EQ(rounds.Round({0.1f, 1, 1, kHuge})[3], 2.1f);
  EXPECT_NEAR(rounds.share(3), 0.5, 1e-6);
}

TEST(WeightLedger, JoinsWithSmallWeightsAreForgottenAfterTheFirstPush) {
  Rounds rounds({1, 1, 1, 1});
  for (uint32_t rank = 0; rank < 3; ++rank) rounds.ledger().Expect(rank, 1e-3);
  rounds.ledger().Expect(3, 1e9);
  rounds.Round({64, 64, 64, kHuge});
  EXPECT_LE(rounds.share(3), rounds.Cap(3) + 1e-6);
  EXPECT_EQ(rounds.Round({64, 64, 64, kHuge}), (Weights{64, 64, 64, 192}));
  EXPECT_NEAR(rounds.share(3), 0.5, 1e-6);
}

TEST(WeightLedger, SeveralThatLieTogetherCountAsThreeEach) {
  Rounds rounds({1, 1, 1, 1, 1, 1, 1});
  rounds.Usually({1, 1, 1, 1, 1, 1, 1});
  for (int round = 0; round < 100; ++round) {
    EXPECT_EQ(rounds.Round({1, 1, 1, 1, kHuge, kHuge, kHuge}), (Weights{1, 1, 1, 1, 3, 3, 3}));
  }
}

// Would cut the others off: what is usual must not fall with it.
TEST(WeightLedger, OneThatSaysNextToNothingDoesNotMoveTheOthers) {
  Rounds rounds({1, 1, 1});
  rounds.Usually({8, 8, 1e-6f});
  EXPECT_EQ(rounds.Round({8, 8, 24}), (Weights{8, 8, 24})) << "saying nothing is not paid back, either";
  EXPECT_NEAR(rounds.share(2), rounds.Cap(2), 1e-6);
}

TEST(WeightLedger, ARankCountsForTheWorkersThatItStandsFor) {
  EXPECT_EQ(Rounds({8, 1, 1}).Round({8, 1, 1}), (Weights{8, 1, 1})) << "a site of eight is no liar";
  Rounds rounds({4, 1, 1, 1, 1});
  EXPECT_EQ(rounds.Round({kHuge, 1, 1, 1, 1}), (Weights{12, 1, 1, 1, 1}));
  EXPECT_NEAR(rounds.share(0), rounds.Cap(0), 1e-9);
  EXPECT_EQ(rounds.Round({4, kHuge, 1, 1, 1})[1], 3);
  // The median is its own word, the others' mean is not.
  EXPECT_EQ(Rounds({5, 1}).Round({kHuge, 1}), (Weights{15, 1}));
}

// The site says 1 for each of its five, which is the median of all seven workers: counted as one that says 5
// it would let the two others have 5 each.
TEST(WeightLedger, ASiteIsAsManyInTheMedianAsItStandsFor) {
  Rounds rounds({5, 1, 1});
  rounds.Usually({5, 10, 10});
  EXPECT_EQ(rounds.Round({5, 10, 10}), (Weights{5, 3, 3}));
}

// The others push a tenth of what is usual: in that round a liar has more than its share, and pays it back.
TEST(WeightLedger, WhatWasTooMuchIsPaidBack) {
  Rounds rounds({1, 1, 1, 1});
  rounds.Usually({10, 10, 10, 10});
  EXPECT_EQ(rounds.Round({1, 1, 1, kHuge})[3], 30);
  EXPECT_NEAR(rounds.share(3), 30.0 / 33, 1e-6) << "13.5 beyond its half";
  EXPECT_NEAR(rounds.Round({10, 10, 10, kHuge})[3], 3 * (10 - 9.0 / 8) - 13.5, 1e-4)
      << "the others' usual is less now";
  for (int round = 0; round < 50; ++round) rounds.Round({10, 10, 10, kHuge});
  EXPECT_NEAR(rounds.share(3), 0.5, 0.01) << "all is paid back";
}

// Would have honest workers pay back, round after round, what was too much beside a worker that says nothing.
TEST(WeightLedger, ALiarThatFallsSilentDoesNotSilenceTheOthers) {
  for (const float silence : {1e-6f, 1.0f, 0.0f}) {
    Rounds rounds({1, 1});
    for (int round = 0; round < 300; ++round) {
      rounds.Round({8, round % 3 == 2 ? kHuge : silence});
      ASSERT_LE(rounds.share(1), 0.75 + 1e-6) << "round " << round << ", " << silence;
    }
  }
}

TEST(WeightLedger, AMemberThatIsAwayLeavesTheOthersTheirShares) {
  Rounds rounds({1, 1, 1});
  rounds.Usually({1, 1, 1});
  rounds.members()[2] = false;
  EXPECT_EQ(rounds.Round({kHuge, 1, 0}), (Weights{3, 1, 0}));
  EXPECT_EQ(rounds.Round({3, 1, 0}), (Weights{3, 1, 0}))
      << "nothing to pay back: three of four is the share of two";
  rounds.members() = {true, false, false};
  EXPECT_EQ(rounds.Round({7, 0, 0}), (Weights{7, 0, 0})) << "alone";
}

// An incarnation that replaces another one pushes again in the same round.
TEST(WeightLedger, TwoPushesOfARankInARoundCountOnce) {
  WeightLedger ledger(kTimes, {1, 1});
  ledger.Begin({true, true});
  EXPECT_EQ(ledger.Count(0, 1), 1);
  EXPECT_EQ(ledger.Count(0, 1), 1);
  EXPECT_EQ(ledger.Count(1, 1), 1);
  EXPECT_EQ(ledger.End(), (std::vector<double>{0.5, 0.5}));
}

TEST(WeightLedger, WhereWeightsAreFixedNothingIsLearned) {
  WeightLedger ledger(kTimes, {1, 1, 1}, /*fixed=*/true);
  ledger.Begin({true, true, true});
  for (int round = 0; round < 20; ++round) {
    EXPECT_EQ(ledger.Count(0, kHuge), 3);
    EXPECT_EQ(ledger.Count(1, 1), 1);
    ledger.End();
  }
  EXPECT_EQ(ledger.Expected(0), 1) << "what it joined with";
}

// --- Claims over random runs ---

float Spread(Random& random, double factor) { return static_cast<float>(std::pow(factor, random.Uniform())); }

TEST(WeightLedger, HonestWeightsThatVaryByThreeAreNeverCut) {
  const uint64_t seed = 11;
  Random random(seed);
  for (int run = 0; run < 50; ++run) {
    const auto ranks = static_cast<uint32_t>(2 + random.Below(9));
    std::vector<uint32_t> stands_for(ranks);
    for (uint32_t& workers : stands_for) workers = 1 + static_cast<uint32_t>(random.Below(4));
    Rounds rounds(stands_for);
    for (int round = 0; round < 200; ++round) {
      Weights said;
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        // One is away now and then; within what all say as they join, 1 for each worker.
        said.push_back(static_cast<float>(stands_for[rank]) * Spread(random, 2.999));
        if (rank > 0 && random.Chance(0.1)) said.back() = 0;
      }
      ASSERT_EQ(rounds.Round(said), said) << "run " << run << ", round " << round << ", seed " << seed;
    }
  }
}

// The claim of the header, for a liar that says anything at any time among others that do what they like.
TEST(WeightLedger, OverAnyRoundsInARowALiarHasItsShareAndSomeRoundsBounds) {
  const uint64_t seed = 12;
  Random random(seed);
  for (int run = 0; run < 200; ++run) {
    const auto ranks = static_cast<uint32_t>(2 + random.Below(9));
    Rounds rounds(std::vector<uint32_t>(ranks, 1));
    const double cap = rounds.Cap(0);
    double owed = 0;  // the most beyond the share over rounds in a row that end here
    for (int round = 0; round < 300; ++round) {
      // In half of the runs the others suddenly say a hundredth: the worst for what is usual.
      const float fallen = run % 2 == 0 && round >= 150 ? 0.01f : 1.0f;
      Weights said{fallen < 1 || random.Chance(0.5) ? kHuge : Spread(random, 1e6) / 1000};
      for (uint32_t rank = 1; rank < ranks; ++rank) said.push_back(8 * Spread(random, 10) * fallen);
      const Weights counted = rounds.Round(said);
      const double sum = std::accumulate(counted.begin(), counted.end(), 0.0);
      const double beyond = counted[0] - cap * sum;
      owed = std::max(0.0, owed + beyond);
      ASSERT_LE(owed, (1 + 8 / kTimes) * kTimes * 80)
          << "run " << run << ", round " << round << ", seed " << seed;
      // In one round: its bound is three times what the others usually say, and they say a tenth at least.
      if (fallen < 1) continue;
      ASSERT_LE(counted[0] / (sum - counted[0]), 30.0 / (ranks - 1) * 1.01)
          << "run " << run << ", seed " << seed;
    }
  }
}

// What bounds a round is known before it: no order of arrival changes what counts.
TEST(WeightLedger, TheOrderOfArrivalDoesNotMatter) {
  const uint64_t seed = 13;
  Random random(seed);
  WeightLedger forward(kTimes, {1, 1, 1, 1}), backward(kTimes, {1, 1, 1, 1});
  for (int round = 0; round < 100; ++round) {
    Weights said, first(4), second(4);
    for (int rank = 0; rank < 4; ++rank) said.push_back(Spread(random, 1000));
    for (WeightLedger* ledger : {&forward, &backward}) ledger->Begin({true, true, true, true});
    for (uint32_t rank = 0; rank < 4; ++rank) first[rank] = forward.Count(rank, said[rank]);
    for (uint32_t rank = 4; rank-- > 0;) second[rank] = backward.Count(rank, said[rank]);
    ASSERT_EQ(first, second) << "seed " << seed;
    forward.End(), backward.End();
  }
}

// A worker that is replaced in mid-round pushes again, as light as it likes: what has counted has counted.
TEST(WeightLedger, ASecondPushOfARoundDoesNotHideTheFirstOnesWeight) {
  for (const bool heavy_first : {true, false}) {
    WeightLedger ledger(kTimes, {1, 1});
    ledger.Expect(0, 1), ledger.Expect(1, 1);
    ledger.Begin({true, true});
    EXPECT_EQ(ledger.Count(0, heavy_first ? kHuge : 0.001f), heavy_first ? 3.0f : 0.001f);
    ledger.Count(0, heavy_first ? 0.001f : kHuge);
    ledger.Count(1, 1);
    EXPECT_GE(ledger.End()[0], 0.75) << "3 of 4";
  }
}

}  // namespace
}  // namespace longhaul::server
