// What every policy's worker half has in common; residual and shift have tests of their own.
#include "codec/policy/sender_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "codec/policy/shift.h"

namespace longhaul::codec {
namespace {

using ::testing::Each;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

const ChunkGeometry kGeometry{.count = 7, .chunk_elements = 3};  // chunks of 3, 3 and 1
const std::vector<float> kGradient = {1, 2, 3, 4, 5, 6, 7};

// A round in which the middle chunk is lost.
void LoseTheMiddle(SenderMemory& memory) {
  const std::span<const float> prepared = memory.Prepare(kGradient);
  for (uint32_t chunk = 0; chunk < 3; ++chunk) {
    memory.SettleChunk(chunk, chunk != 1, kGeometry.Elements(prepared, chunk));
  }
  memory.Finish();
}

TEST(SenderMemory, PoliciesThatForgetSendTheGradientItselfEveryTime) {
  for (const LossPolicy policy : ValuesOf<LossPolicy>()) {
    if (Remembers(policy)) continue;
    const auto memory = MakeSenderMemory({.policy = policy}, kGeometry);
    LoseTheMiddle(*memory);
    const std::span<const float> prepared = memory->Prepare(kGradient);
    EXPECT_EQ(prepared.data(), kGradient.data()) << NameOf(policy) << ": borrowed, not copied";
    EXPECT_EQ(prepared.size(), kGradient.size());
    EXPECT_THAT(memory->owed(), IsEmpty());
    EXPECT_THAT(memory->shift(), IsEmpty());
    memory->Finish();
    memory->BeginEpoch();  // nothing to forget
  }
}

TEST(SenderMemory, TheOthersRememberEachInItsWay) {
  for (const LossPolicy policy : ValuesOf<LossPolicy>()) {
    const auto memory = MakeSenderMemory({.policy = policy, .shift_alpha = 0.5f}, kGeometry);
    EXPECT_THAT(memory->Prepare(kGradient), ElementsAreArray(kGradient)) << "nothing is owed or expected yet";
    memory->Finish();
    EXPECT_EQ(memory->owed().size(), policy == LossPolicy::kResidual ? 7u : 0u);
    EXPECT_EQ(memory->shift().size(), policy == LossPolicy::kShift ? 7u : 0u);
    for (size_t i = 0; i < memory->owed().size(); ++i) EXPECT_EQ(memory->owed()[i], kGradient[i]);
    EXPECT_THAT(memory->shift(), Each(0)) << "nothing was delivered";
  }
}

// What is to come of a gradient is what comes of it, and looking changes nothing. Chunk 0 was delivered,
// chunk 1 lost, and the last one arrived rounded.
TEST(SenderMemory, APreviewIsWhatCombiningMakes) {
  for (const LossPolicy policy : ValuesOf<LossPolicy>()) {
    for (const bool new_epoch : {false, true}) {
      const auto memory = MakeSenderMemory({.policy = policy, .shift_alpha = 0.5f}, kGeometry);
      const std::span<const float> first = memory->Prepare(kGradient);
      memory->SettleChunk(0, true, kGeometry.Elements(first, 0));
      memory->SettleChunk(1, false, {});
      memory->SettleChunk(2, true, std::vector<float>{6.5f});
      memory->Finish();
      const std::vector<float> next = {3, -2, -4, 0, 1, -12, 5};
      std::vector<float> expected(7), one_by_one(7);
      std::vector<Survey> surveys(3);
      for (uint32_t c = 0; c < 3; ++c) {
        const std::span<const float> fresh = kGeometry.Elements(std::span(next), c);
        surveys[c] = memory->SurveyChunk(c, fresh, new_epoch, 1);
        memory->Preview(c, fresh, new_epoch, kGeometry.Elements(std::span(expected), c));
      }
      for (size_t i = 0; i < 7; ++i) one_by_one[i] = memory->PreviewOne(i, next[i], new_epoch);
      if (new_epoch) memory->BeginEpoch();
      EXPECT_THAT(memory->Prepare(next), ElementsAreArray(expected)) << NameOf(policy);
      EXPECT_EQ(one_by_one, expected) << NameOf(policy);
      for (uint32_t c = 0; c < 3; ++c) {
        const std::span<const float> values = kGeometry.Elements(std::span(expected), c);
        const Survey survey = BestKernels().survey({values.data()}, values.size());
        EXPECT_EQ(surveys[c].largest, survey.largest) << NameOf(policy) << " chunk " << c;
        EXPECT_EQ(surveys[c].selected, survey.selected) << NameOf(policy) << " chunk " << c;
        EXPECT_EQ(surveys[c].energy, survey.energy) << NameOf(policy) << " chunk " << c;
      }
      if (policy == LossPolicy::kResidual) {
        EXPECT_EQ(expected, (std::vector<float>{3, -2, -4, 4, 6, -6, 5.5f}));
      }
      if (policy == LossPolicy::kShift && !new_epoch) {
        EXPECT_EQ(expected, (std::vector<float>{2.5f, -3, -5.5f, 0, 1, -12, 1.75f}));
      }
    }
  }
}

// A chunk in which nothing is remembered may travel from the gradient itself, without being combined.
TEST(SenderMemory, WhatWasNeverCombinedIsDeliveredOrOwedAllTheSame) {
  ResidualMemory residual(kGeometry);
  ShiftMemory shift(kGeometry, 0.5f);
  for (SenderMemory* memory : {static_cast<SenderMemory*>(&residual), static_cast<SenderMemory*>(&shift)}) {
    memory->Begin(kGradient);
    for (uint32_t c = 0; c < 3; ++c) EXPECT_FALSE(memory->Holds(c));
    memory->SettleChunk(0, true, kGeometry.Elements(std::span(kGradient), 0));
    memory->SettleChunk(1, false, {});
    memory->Finish();  // and nothing was said of the last chunk
  }
  EXPECT_THAT(residual.owed(), ElementsAreArray({0, 0, 0, 4, 5, 6, 7}));
  EXPECT_FALSE(residual.Holds(0));
  EXPECT_TRUE(residual.Holds(1));
  EXPECT_TRUE(residual.Holds(2));
  EXPECT_THAT(shift.shift(), ElementsAreArray({0.5f, 1.f, 1.5f, 0.f, 0.f, 0.f, 0.f}));
  EXPECT_TRUE(shift.Holds(0));
  // A debt that another process left (Owe) is added to the next gradient like the own ones.
  residual.Owe(2, std::vector<float>{1});
  EXPECT_THAT(residual.Prepare(kGradient), ElementsAreArray({1, 2, 4, 8, 10, 12, 14}));
}

// Its first gradient was given up before it was combined: the next one is the first of its epoch.
TEST(SenderMemory, AnEpochThatWasGivenUpBeginsAgain) {
  ShiftMemory memory(kGeometry, 1);
  LoseTheMiddle(memory);
  EXPECT_THAT(memory.shift(), ElementsAreArray({1, 2, 3, 0, 0, 0, 7}));
  memory.BeginEpoch();
  memory.Begin(kGradient);
  memory.CombineChunk(0);
  memory.Finish();
  EXPECT_THAT(memory.Prepare(kGradient), ElementsAreArray(kGradient)) << "nothing is expected";
  EXPECT_THAT(memory.shift(), Each(0));
  memory.Finish();
  EXPECT_THAT(memory.Prepare(kGradient), ElementsAreArray(kGradient));
  memory.SettleChunk(2, true, std::vector<float>{7});
  memory.Finish();
  EXPECT_THAT(memory.shift(), ElementsAreArray({0, 0, 0, 0, 0, 0, 7})) << "an epoch begins once";
}

TEST(SenderMemory, APreviewLeavesOutADebtThatWillBeDropped) {
  ResidualMemory memory(kGeometry, 10);
  LoseTheMiddle(memory);
  const std::vector<float> next = {1, 1, 1, 1, 1, 5, 1};
  std::vector<float> values(3);
  const std::span<const float> fresh = kGeometry.Elements(std::span(next), 1);
  memory.Preview(1, fresh, false, values);
  EXPECT_THAT(values, ElementsAreArray({1, 1, 5})) << "6 + 5 is too much";
  EXPECT_EQ(memory.SurveyChunk(1, fresh, false, 1).energy, 27);
  EXPECT_EQ(memory.debts_dropped(), 0u);
  memory.Prepare(next);
  EXPECT_EQ(memory.debts_dropped(), 1u);
}

}  // namespace
}  // namespace longhaul::codec
