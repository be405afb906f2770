// Repayment: no gradient is lost, only delayed. Integers in floats, so that sums are exact.
#include "codec/policy/sender_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "base/random.h"

namespace longhaul::codec {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const ChunkGeometry kGeometry{.count = 7, .chunk_elements = 3};  // chunks of 3, 3 and 1

// Settles every chunk of what was prepared; it travelled as it is.
void Settle(ResidualMemory& memory, std::span<const float> prepared,
            const std::function<bool(uint32_t)>& lost) {
  for (uint32_t chunk = 0; chunk < kGeometry.chunks(); ++chunk) {
    memory.SettleChunk(chunk, !lost(chunk), kGeometry.Elements(prepared, chunk));
  }
  memory.Finish();
}

TEST(Residual, WhatWasLostIsSentAgainWithTheNextGradient) {
  ResidualMemory memory(kGeometry);
  const auto prepared = memory.Prepare(std::vector<float>{1, 2, 3, 4, 5, 6, 7});
  EXPECT_THAT(prepared, ElementsAre(1, 2, 3, 4, 5, 6, 7));
  Settle(memory, prepared, [](uint32_t chunk) { return chunk == 1; });
  EXPECT_THAT(memory.owed(), ElementsAre(0, 0, 0, 4, 5, 6, 0));
  EXPECT_THAT(memory.Prepare(std::vector<float>(7, 10)), ElementsAre(10, 10, 10, 14, 15, 16, 10));
}

TEST(Residual, WhatAnotherOwedIsAddedToWhatIsOwedHere) {
  ResidualMemory memory(kGeometry);
  memory.Owe(2, std::vector<float>{3, 4});
  memory.Owe(3, std::vector<float>{10});
  EXPECT_THAT(memory.owed(), ElementsAre(0, 0, 3, 14, 0, 0, 0));
  EXPECT_THAT(memory.Prepare(std::vector<float>(7, 1)), ElementsAre(1, 1, 4, 15, 1, 1, 1));
}

TEST(Residual, TheShortLastChunkIsKeptToo) {
  ResidualMemory memory(kGeometry);
  const auto prepared = memory.Prepare(std::vector<float>(7, 1));
  Settle(memory, prepared, [](uint32_t chunk) { return chunk == 2; });
  EXPECT_THAT(memory.owed(), ElementsAre(0, 0, 0, 0, 0, 0, 1));
}

TEST(Residual, AWindowThatNeverClosedKeepsEverything) {
  ResidualMemory memory(kGeometry);
  for (int round = 1; round <= 5; ++round) {
    EXPECT_THAT(memory.Prepare(std::vector<float>(7, 2)), Each(2.0f * static_cast<float>(round)));
    memory.Finish();
  }
  const auto prepared = memory.Prepare(std::vector<float>(7, 2));
  Settle(memory, prepared, [](uint32_t) { return false; });
  EXPECT_THAT(memory.owed(), Each(0));
}

TEST(Residual, WhatQuantisationAndSparsificationTookAwayIsOwed) {
  ResidualMemory memory(kGeometry);
  memory.Prepare(std::vector<float>{1.25f, 2.5f, 3, 4, 5, 6, 7});
  memory.SettleChunk(0, true, std::vector<float>{1, 3, 3});  // rounded
  memory.SettleChunk(1, true, std::vector<float>{0, 0, 6});  // only the largest travelled
  memory.SettleChunk(2, false, {});
  memory.Finish();
  EXPECT_THAT(memory.owed(), ElementsAre(0.25f, -0.5f, 0, 4, 5, 0, 7));
}

TEST(Residual, KnowsNoEpochs) {
  ResidualMemory memory(kGeometry);
  memory.Prepare(std::vector<float>(7, 2));
  memory.Finish();
  memory.BeginEpoch();
  EXPECT_THAT(memory.owed(), Each(2));
  EXPECT_THAT(memory.shift(), IsEmpty());
}

// A worker that loses chunks at random and rounds to eights: delivered + owed == produced after every round.
TEST(Residual, NothingIsLostOnlyDelayed) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    const ChunkGeometry geometry{.count = 200 + random.Below(50), .chunk_elements = 16};
    ResidualMemory memory(geometry);
    std::vector<double> produced(geometry.count, 0);
    std::vector<double> delivered(geometry.count, 0);
    const double loss = random.Uniform();
    for (int round = 0; round < 50; ++round) {
      std::vector<float> gradient(geometry.count);
      for (size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = static_cast<float>(random.Below(201)) - 100.0f;
        produced[i] += gradient[i];
      }
      const std::span<const float> prepared = memory.Prepare(gradient);
      for (uint32_t chunk = 0; chunk < geometry.chunks(); ++chunk) {
        if (random.Chance(loss)) continue;  // never settled: not taken
        const std::span<const float> values = geometry.Elements(prepared, chunk);
        std::vector<float> sent(values.begin(), values.end());
        if (random.Chance(0.5)) {
          for (float& value : sent) value = 8 * std::round(value / 8);
        }
        for (size_t i = 0; i < sent.size(); ++i) delivered[geometry.First(chunk) + i] += sent[i];
        memory.SettleChunk(chunk, true, sent);
      }
      memory.Finish();
      for (size_t i = 0; i < produced.size(); ++i) {
        ASSERT_EQ(delivered[i] + memory.owed()[i], produced[i])
            << "seed " << seed << " round " << round << " element " << i;
      }
    }
  }
}

TEST(ResidualMemory, ADebtThatOverflowsIsDroppedWithItsChunkAndCounted) {
  ResidualMemory memory(kGeometry);
  const std::vector<float> huge = {2e38f, 1, 1, 1, 1, 1, 1};
  const auto nothing_arrives = [](uint32_t) { return true; };
  Settle(memory, memory.Prepare(huge), nothing_arrives);
  EXPECT_EQ(memory.debts_dropped(), 0u);
  Settle(memory, memory.Prepare(huge), nothing_arrives);
  EXPECT_THAT(memory.owed(), ElementsAre(2e38f, 1, 1, 2, 2, 2, 2))
      << "the second gradient, where both do not fit";
  EXPECT_EQ(memory.debts_dropped(), 1u);
  Settle(memory, memory.Prepare(std::vector<float>(7, 1.0f)), [](uint32_t) { return false; });
  EXPECT_THAT(memory.owed(), Each(0.0f));
  EXPECT_EQ(memory.debts_dropped(), 1u);
}

}  // namespace
}  // namespace longhaul::codec
