// A11: above the bubble-filling threshold the policy fills what is lost; below it, the loss is tolerated.
//
// Four workers of weight 1, values in integers, so that every expectation is exact.
#include "codec/bubble_fill.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace longhaul::codec {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr FillPolicy kAll[] = {FillPolicy::kZero, FillPolicy::kCount, FillPolicy::kStale,
                               FillPolicy::kResidual};

std::vector<float> Mean(FillPolicy policy, const ChunkTally& tally, const std::vector<float>& sum,
                        const std::vector<float>& previous = {}) {
  std::vector<float> mean(sum.size(), -1.0f);
  FillMean(policy, tally, sum, previous, mean);
  return mean;
}

// Chunk of two elements. Three workers' values arrived and add up to {24, -12}; the fourth's are missing.
const std::vector<float> kSum = {24, -12};
const std::vector<float> kPrevious = {40, 20};
constexpr ChunkTally kAboveThreshold{.arrived = 3, .tolerated = 0, .filled = 1};
constexpr ChunkTally kBelowThreshold{.arrived = 3, .tolerated = 1, .filled = 0};

TEST(BubbleFill, LossAboveTheBubbleThresholdFillsLostLowChunks) {
  EXPECT_THAT(Mean(FillPolicy::kZero, kAboveThreshold, kSum), ElementsAre(6, -3));
  EXPECT_THAT(Mean(FillPolicy::kCount, kAboveThreshold, kSum), ElementsAre(8, -4));
  // The fourth worker is taken to repeat the last mean, times 0.9: (24 + 36) / 4 and (-12 + 18) / 4.
  const auto stale = Mean(FillPolicy::kStale, kAboveThreshold, kSum, kPrevious);
  EXPECT_FLOAT_EQ(stale[0], 15);
  EXPECT_FLOAT_EQ(stale[1], 1.5f);
  EXPECT_THAT(Mean(FillPolicy::kResidual, kAboveThreshold, kSum, kPrevious), ElementsAre(6, -3));
}

TEST(BubbleFill, LossBelowTheThresholdIsToleratedAsItIs) {
  for (FillPolicy policy : kAll) {
    EXPECT_THAT(Mean(policy, kBelowThreshold, kSum, kPrevious), ElementsAre(6, -3)) << FillPolicyName(policy);
  }
}

TEST(BubbleFill, WithoutLossEveryPolicyIsThePlainMean) {
  for (FillPolicy policy : kAll) {
    EXPECT_THAT(Mean(policy, {.arrived = 4}, {8, 4}, kPrevious), ElementsAre(2, 1)) << FillPolicyName(policy);
  }
}

TEST(BubbleFill, WeightsCountNotHeads) {
  // Two workers with 96 and 32 samples; the small one's chunk is lost.
  const std::vector<float> sum = {96 * 4.0f};
  EXPECT_THAT(Mean(FillPolicy::kZero, {.arrived = 96, .filled = 32}, sum), ElementsAre(3));
  EXPECT_THAT(Mean(FillPolicy::kCount, {.arrived = 96, .filled = 32}, sum), ElementsAre(4));
}

TEST(BubbleFill, ToleratedAndFilledLossInOneChunkAreTakenApart) {
  // Of four, two arrived, one is tolerated as zero and one is filled.
  const ChunkTally tally{.arrived = 2, .tolerated = 1, .filled = 1};
  EXPECT_THAT(Mean(FillPolicy::kZero, tally, {12}), ElementsAre(3));
  EXPECT_THAT(Mean(FillPolicy::kCount, tally, {12}), ElementsAre(4));
}

TEST(BubbleFill, WhatNobodyDeliveredIsZeroOrThePast) {
  const ChunkTally nothing{.arrived = 0, .tolerated = 0, .filled = 4};
  const std::vector<float> sum = {0, 0};
  EXPECT_THAT(Mean(FillPolicy::kZero, nothing, sum), Each(0));
  EXPECT_THAT(Mean(FillPolicy::kCount, nothing, sum), Each(0));
  EXPECT_THAT(Mean(FillPolicy::kResidual, nothing, sum), Each(0));
  EXPECT_FLOAT_EQ(Mean(FillPolicy::kStale, nothing, sum, kPrevious)[0], 36);
  EXPECT_THAT(Mean(FillPolicy::kStale, nothing, sum), Each(0));  // first round: there is no past
  for (FillPolicy policy : kAll) EXPECT_THAT(Mean(policy, {}, sum, kPrevious), Each(0));
}

TEST(BubbleFill, MayWriteWhereItReads) {
  std::vector<float> values = kSum;
  FillMean(FillPolicy::kStale, kAboveThreshold, values, kPrevious, values);
  EXPECT_EQ(values, Mean(FillPolicy::kStale, kAboveThreshold, kSum, kPrevious));
}

TEST(FillPolicyRule, ALossIsCompensatedOnceEitherByTheServerOrByTheWorker) {
  // The policy that repays fills with zero and keeps the divisor, whatever the past says.
  for (FillPolicy policy : kAll) {
    if (!WorkerRepays(policy)) continue;
    EXPECT_EQ(Mean(policy, kAboveThreshold, kSum, kPrevious), Mean(FillPolicy::kZero, kAboveThreshold, kSum));
  }
  EXPECT_TRUE(WorkerRepays(FillPolicy::kResidual));
  EXPECT_FALSE(WorkerRepays(FillPolicy::kZero));
  EXPECT_FALSE(WorkerRepays(FillPolicy::kCount));
  EXPECT_FALSE(WorkerRepays(FillPolicy::kStale));
}

TEST(FillPolicyNames, ComeBack) {
  for (FillPolicy policy : kAll) {
    const auto parsed = ParseFillPolicy(FillPolicyName(policy));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, policy);
  }
}

TEST(FillPolicyNames, PlannedOnesSaySoAndUnknownOnesListWhatExists) {
  for (const char* name : {"ipw", "shift"}) {
    const auto parsed = ParseFillPolicy(name);
    ASSERT_FALSE(parsed.ok());
    EXPECT_THAT(parsed.status().message(), HasSubstr("not available yet"));
  }
  const auto parsed = ParseFillPolicy("Zero");
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(parsed.status().message(), HasSubstr("residual"));
}

}  // namespace
}  // namespace longhaul::codec
