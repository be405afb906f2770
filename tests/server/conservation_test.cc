// No gradient is lost, none counts twice: 10,000 random rounds by policy and kind of number, loss up to 60 %,
// duplicates, reordering, chunks of old windows, workers that leave, join and are replaced.
#include <gtest/gtest.h>

#include <string>

#include "tests/server/lossy_rounds.h"

namespace longhaul::server {
namespace {

using Fault = LossyRounds::Fault;

constexpr uint64_t kFirstSeed = 20'000;
constexpr int kRuns = 200;
constexpr int kRoundsPerRun = 50;

struct Case {
  LossPolicy policy;
  bool integers;
};

LossyRounds::Options OptionsOf(const Case& c, uint64_t seed) {
  LossyRounds::Options options;
  options.job_spec.policy = c.policy;
  options.job_spec.shift_alpha = c.integers ? 1.0 : 0.1;
  options.job_spec.bubble_threshold = 0.2;
  options.integers = c.integers;
  // Every other run quantises what it sends.
  if (seed % 2 == 1) options.quantum = c.integers ? 2 : 0.25;
  options.seed = seed;
  return options;
}

struct Conservation : testing::TestWithParam<Case> {};

TEST_P(Conservation, HoldsOverTenThousandRandomRounds) {
  uint64_t late = 0;
  uint64_t duplicates = 0;
  for (uint64_t seed = kFirstSeed; seed < kFirstSeed + kRuns; ++seed) {
    LossyRounds rounds(OptionsOf(GetParam(), seed));
    for (int round = 0; round < kRoundsPerRun; ++round) {
      const Violation violation = rounds.Round();
      ASSERT_FALSE(violation) << "seed " << seed << " round " << round << ": " << *violation;
    }
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
    late += rounds.late_dropped();
    duplicates += rounds.duplicates_dropped();
  }
  EXPECT_GT(late, 1000u) << "the rounds were too tame";
  EXPECT_GT(duplicates, 1000u);
}

// The checkers themselves, in integers, since a small mistake may hide in rounding: each of these mistakes,
// made once, is found in the round in which it is made.
void ExpectEveryMistakeFound(LossPolicy policy) {
  for (const Fault fault : {Fault::kDoubled, Fault::kSettledThoughLost, Fault::kLostThoughSettled,
                            Fault::kLateCounts, Fault::kDroppedOwed, Fault::kMissedEpoch}) {
    if (fault == Fault::kMissedEpoch && policy != LossPolicy::kShift) continue;
    if (fault == Fault::kDroppedOwed && policy == LossPolicy::kShift) continue;  // refused by its epoch
    int made = 0;
    for (uint64_t seed = kFirstSeed; made < 20; ++seed) {
      ASSERT_LT(seed, kFirstSeed + kRuns) << "fault " << static_cast<int>(fault) << " is too rare";
      LossyRounds::Options options = OptionsOf({policy, /*integers=*/true}, seed);
      options.fault = fault;
      LossyRounds rounds(options);
      for (int round = 0; round < kRoundsPerRun && !rounds.faulty(); ++round) {
        const Violation violation = rounds.Round();
        EXPECT_EQ(violation.has_value(), rounds.faulty())
            << "fault " << static_cast<int>(fault) << " seed " << seed << " round " << round;
      }
      made += rounds.faulty() ? 1 : 0;
    }
  }
}

TEST(ConservationCheckers, FindEveryMistakeWithResiduals) { ExpectEveryMistakeFound(LossPolicy::kResidual); }
TEST(ConservationCheckers, FindEveryMistakeWithShifts) { ExpectEveryMistakeFound(LossPolicy::kShift); }

INSTANTIATE_TEST_SUITE_P(, Conservation,
                         testing::Values(Case{LossPolicy::kResidual, true},
                                         Case{LossPolicy::kResidual, false}, Case{LossPolicy::kShift, true},
                                         Case{LossPolicy::kShift, false}),
                         [](const auto& c) {
                           return std::string(NameOf(c.param.policy)) +
                                  (c.param.integers ? "_exactly_in_integers" : "_to_rounding_in_floats");
                         });

}  // namespace
}  // namespace longhaul::server
