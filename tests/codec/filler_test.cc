// A11: above the bubble-filling threshold the policy fills what is lost; below it, the loss is tolerated.
//
// Four workers of weight 1, values in integers, so that every expectation is exact.
#include "codec/policy/filler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <vector>

#include "base/random.h"

namespace longhaul::codec {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// The mean of one chunk by a filler whose last round's mean was `previous` (none: it is new).
std::vector<float> Mean(LossPolicy policy, const ChunkTally& tally, const std::vector<float>& sum,
                        const std::vector<float>& previous = {}) {
  const ChunkGeometry geometry{.count = sum.size(), .chunk_elements = static_cast<uint32_t>(sum.size())};
  const auto filler = MakeFiller({.policy = policy}, geometry, 4);
  std::vector<float> mean(sum.size(), -1.0f);
  if (!previous.empty()) filler->Mean(0, {.arrived = 1}, previous, mean);
  filler->Mean(0, tally, sum, mean);
  return mean;
}

// All whose mean depends on the sum and the tally only; shift has a test of its own.
constexpr LossPolicy kByTally[] = {LossPolicy::kZero, LossPolicy::kCount, LossPolicy::kStale,
                                   LossPolicy::kIpw, LossPolicy::kResidual};

// Chunk of two elements. Three workers' values arrived and add up to {24, -12}; the fourth's are missing.
const std::vector<float> kSum = {24, -12};
const std::vector<float> kPrevious = {40, 20};
constexpr ChunkTally kAboveThreshold{.arrived = 3, .tolerated = 0, .filled = 1};
constexpr ChunkTally kBelowThreshold{.arrived = 3, .tolerated = 1, .filled = 0};

TEST(BubbleFill, LossAboveTheBubbleThresholdFillsLostLowChunks) {
  EXPECT_THAT(Mean(LossPolicy::kZero, kAboveThreshold, kSum), ElementsAre(6, -3));
  EXPECT_THAT(Mean(LossPolicy::kCount, kAboveThreshold, kSum), ElementsAre(8, -4));
  // The fourth worker is taken to repeat the last mean, times 0.9: (24 + 36) / 4 and (-12 + 18) / 4.
  const auto stale = Mean(LossPolicy::kStale, kAboveThreshold, kSum, kPrevious);
  EXPECT_FLOAT_EQ(stale[0], 15);
  EXPECT_FLOAT_EQ(stale[1], 1.5f);
  EXPECT_THAT(Mean(LossPolicy::kResidual, kAboveThreshold, kSum, kPrevious), ElementsAre(6, -3));
}

TEST(BubbleFill, LossBelowTheThresholdIsToleratedAsItIs) {
  for (LossPolicy policy : kByTally) {
    EXPECT_THAT(Mean(policy, kBelowThreshold, kSum, kPrevious), ElementsAre(6, -3)) << NameOf(policy);
  }
}

TEST(BubbleFill, WithoutLossEveryPolicyIsThePlainMean) {
  for (LossPolicy policy : kByTally) {
    EXPECT_THAT(Mean(policy, {.arrived = 4}, {8, 4}, kPrevious), ElementsAre(2, 1)) << NameOf(policy);
  }
}

TEST(BubbleFill, WeightsCountNotHeads) {
  // Two workers with 96 and 32 samples; the small one's chunk is lost.
  const std::vector<float> sum = {96 * 4.0f};
  EXPECT_THAT(Mean(LossPolicy::kZero, {.arrived = 96, .filled = 32}, sum), ElementsAre(3));
  EXPECT_THAT(Mean(LossPolicy::kCount, {.arrived = 96, .filled = 32}, sum), ElementsAre(4));
}

TEST(BubbleFill, ToleratedAndFilledLossInOneChunkAreTakenApart) {
  // Of four, two arrived, one is tolerated as zero and one is filled.
  const ChunkTally tally{.arrived = 2, .tolerated = 1, .filled = 1};
  EXPECT_THAT(Mean(LossPolicy::kZero, tally, {12}), ElementsAre(3));
  EXPECT_THAT(Mean(LossPolicy::kCount, tally, {12}), ElementsAre(4));
}

TEST(BubbleFill, WhatNobodyDeliveredIsZeroOrThePast) {
  const ChunkTally nothing{.arrived = 0, .tolerated = 0, .filled = 4};
  const std::vector<float> sum = {0, 0};
  EXPECT_THAT(Mean(LossPolicy::kZero, nothing, sum), Each(0));
  EXPECT_THAT(Mean(LossPolicy::kCount, nothing, sum), Each(0));
  EXPECT_THAT(Mean(LossPolicy::kResidual, nothing, sum), Each(0));
  EXPECT_FLOAT_EQ(Mean(LossPolicy::kStale, nothing, sum, kPrevious)[0], 36);
  EXPECT_THAT(Mean(LossPolicy::kStale, nothing, sum), Each(0));  // first round: there is no past
  for (LossPolicy policy : kByTally)
    EXPECT_THAT(Mean(policy, {}, sum, kPrevious), Each(0)) << "nobody is awaited";
}

TEST(BubbleFill, StaleLooksOneRoundBackChunkByChunk) {
  const ChunkGeometry geometry{.count = 2, .chunk_elements = 1};
  const auto filler = MakeFiller({.policy = LossPolicy::kStale}, geometry, 1);
  std::vector<float> mean(1);
  filler->Mean(0, {.arrived = 1}, std::vector<float>{10}, mean);
  filler->Mean(1, {.arrived = 1}, std::vector<float>{20}, mean);
  filler->Mean(0, {.filled = 1}, std::vector<float>{0}, mean);
  EXPECT_FLOAT_EQ(mean[0], 9);
  filler->Mean(0, {.filled = 1}, std::vector<float>{0}, mean);
  EXPECT_FLOAT_EQ(mean[0], 8.1f) << "it fades as long as nothing comes";
  filler->Mean(1, {.filled = 1}, std::vector<float>{0}, mean);
  EXPECT_FLOAT_EQ(mean[0], 18);
}

TEST(LossPolicyRule, ALossIsCompensatedOnceEitherByTheServerOrByTheWorker) {
  // Where the worker repays, the server fills with zero and keeps the divisor, whatever the past says.
  EXPECT_EQ(Mean(LossPolicy::kResidual, kAboveThreshold, kSum, kPrevious),
            Mean(LossPolicy::kZero, kAboveThreshold, kSum));
  // Nor does anything that arrives count for more.
  const auto filler = MakeFiller({.policy = LossPolicy::kResidual}, {.count = 1}, 1);
  filler->OnWindowOver(0, 10, 1);
  EXPECT_EQ(filler->ArrivalScale(0, false), 1.0f);
}

// --- ipw: what arrives of a lossy worker's low class counts for more ---

struct Ipw : testing::Test {
  std::unique_ptr<Filler> filler =
      MakeFiller({.policy = LossPolicy::kIpw, .bubble_threshold = 0.1}, {.count = 1}, 2);
  void Windows(uint32_t rank, uint32_t received_of_100, int rounds) {
    for (int i = 0; i < rounds; ++i) filler->OnWindowOver(rank, 100, received_of_100);
  }
};

TEST_F(Ipw, CountsByTheInverseOfTheShareThatArrivedBefore) {
  EXPECT_EQ(filler->ArrivalScale(0, false), 1.0f) << "nothing is known yet";
  Windows(0, 50, 1);
  EXPECT_FLOAT_EQ(filler->ArrivalScale(0, false), 2.0f);
  EXPECT_EQ(filler->ArrivalScale(0, true), 1.0f) << "the high class always arrives";
  EXPECT_EQ(filler->ArrivalScale(1, false), 1.0f) << "by worker";
}

TEST_F(Ipw, FollowsTheShareOverRounds) {
  Windows(0, 50, 1);
  Windows(0, 100, 1);
  EXPECT_FLOAT_EQ(filler->ArrivalScale(0, false), 1 / (0.5f + 0.5f / 8));
  Windows(0, 25, 100);
  EXPECT_NEAR(filler->ArrivalScale(0, false), 4.0f, 1e-4);
}

TEST_F(Ipw, IsBounded) {
  Windows(0, 1, 1);
  EXPECT_EQ(filler->ArrivalScale(0, false), kMaxInverseShare);
  Windows(1, 0, 1);
  EXPECT_EQ(filler->ArrivalScale(1, false), kMaxInverseShare) << "nothing at all came";
}

TEST_F(Ipw, ToleratesLossUpToTheThreshold) {
  Windows(0, 91, 1);
  EXPECT_EQ(filler->ArrivalScale(0, false), 1.0f);
  Windows(1, 89, 1);
  EXPECT_FLOAT_EQ(filler->ArrivalScale(1, false), 1 / 0.89f);
}

TEST_F(Ipw, AWindowWithoutLowChunksSaysNothing) {
  Windows(0, 50, 1);
  filler->OnWindowOver(0, 0, 0);
  EXPECT_FLOAT_EQ(filler->ArrivalScale(0, false), 2.0f);
}

// --- Bias: eight workers, of which two lose 60 % and six 5 % ---

// The long run of the means, less the mean of what the workers produced. Their gradients have these means.
double Bias(LossPolicy policy, const std::vector<double>& means) {
  constexpr uint64_t kSeed = 77;
  Random random(kSeed);
  const ChunkGeometry geometry{.count = 50, .chunk_elements = 1};
  const auto filler = MakeFiller({.policy = policy, .bubble_threshold = 0.02}, geometry, 8);
  double total = 0;
  double produced = 0;
  constexpr int kWarmUp = 20;
  for (int round = 0; round < kWarmUp + 500; ++round) {
    std::vector<uint32_t> received(8, 0);
    for (uint32_t chunk = 0; chunk < geometry.chunks(); ++chunk) {
      ChunkTally tally;
      float sum = 0;
      float all = 0;
      for (uint32_t rank = 0; rank < 8; ++rank) {
        const auto gradient = static_cast<float>(means[rank] + random.Normal());
        all += gradient;
        if (random.Chance(rank < 2 ? 0.6 : 0.05)) {
          tally.filled += 1;
          continue;
        }
        tally.arrived += 1;
        ++received[rank];
        sum += filler->ArrivalScale(rank, false) * gradient;
      }
      float mean = 0;
      filler->Mean(chunk, tally, std::span(&sum, 1), std::span(&mean, 1));
      if (round < kWarmUp) continue;
      total += mean;
      produced += all / 8;
    }
    for (uint32_t rank = 0; rank < 8; ++rank) filler->OnWindowOver(rank, geometry.chunks(), received[rank]);
  }
  return (total - produced) / (500.0 * geometry.chunks());
}

TEST(Bias, UnevenLossShrinksZeroAndNeitherCountNorIpw) {
  const std::vector<double> alike(8, 4.0);
  EXPECT_NEAR(Bias(LossPolicy::kZero, alike), -4.0 * (2 * 0.6 + 6 * 0.05) / 8, 0.03);
  EXPECT_NEAR(Bias(LossPolicy::kCount, alike), 0, 0.03);
  EXPECT_NEAR(Bias(LossPolicy::kIpw, alike), 0, 0.06);
}

TEST(Bias, OfUnlikeWorkersOnlyIpwIsFairToThoseWithABadPath) {
  // The two on the bad path see other data than the rest; the mean of all is 2.5.
  const std::vector<double> unlike = {10, 10, 0, 0, 0, 0, 0, 0};
  EXPECT_LT(Bias(LossPolicy::kZero, unlike), -1.0);
  EXPECT_LT(Bias(LossPolicy::kCount, unlike), -0.5) << "it leans to those that arrive";
  EXPECT_NEAR(Bias(LossPolicy::kIpw, unlike), 0, 0.1);
}

TEST(FillReason, SaysWhyLossesWereAnsweredAsTheyWere) {
  for (const LossPolicy policy : ValuesOf<LossPolicy>()) {
    EXPECT_EQ(ReasonFor(policy, {.arrived = 4}), FillReason::kNoneLost) << NameOf(policy);
  }
  for (const LossPolicy policy :
       {LossPolicy::kZero, LossPolicy::kCount, LossPolicy::kStale, LossPolicy::kIpw}) {
    EXPECT_EQ(ReasonFor(policy, kBelowThreshold), FillReason::kBelowThreshold) << NameOf(policy);
    EXPECT_EQ(ReasonFor(policy, kAboveThreshold), FillReason::kAboveThreshold) << NameOf(policy);
    EXPECT_EQ(ReasonFor(policy, {.arrived = 2, .tolerated = 1, .filled = 1}), FillReason::kAboveThreshold);
  }
  EXPECT_EQ(ReasonFor(LossPolicy::kResidual, kBelowThreshold), FillReason::kRepaid);
  EXPECT_EQ(ReasonFor(LossPolicy::kShift, kAboveThreshold), FillReason::kShifted);
  EXPECT_EQ(FillReasonName(FillReason::kRepaid), "repaid");
}

}  // namespace
}  // namespace longhaul::codec
