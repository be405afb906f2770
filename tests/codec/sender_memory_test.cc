// What every policy's worker half has in common; residual and shift have tests of their own.
#include "codec/policy/sender_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

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

}  // namespace
}  // namespace longhaul::codec
