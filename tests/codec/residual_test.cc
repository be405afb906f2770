// Repayment: no gradient is lost, only delayed. Integers in floats, so that sums are exact.
#include "codec/residual.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"
#include "codec/bubble_fill.h"

namespace longhaul::codec {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

const ChunkGeometry kGeometry{.count = 7, .chunk_elements = 3};  // chunks of 3, 3 and 1

TEST(Residual, WhatWasLostIsSentAgainWithTheNextGradient) {
  Residual residual(kGeometry);
  EXPECT_THAT(residual.Combine(std::vector<float>{1, 2, 3, 4, 5, 6, 7}), ElementsAre(1, 2, 3, 4, 5, 6, 7));
  residual.Settle([](uint32_t chunk) { return chunk == 1; });
  EXPECT_THAT(residual.values(), ElementsAre(0, 0, 0, 4, 5, 6, 0));
  EXPECT_THAT(residual.Combine(std::vector<float>(7, 10)), ElementsAre(10, 10, 10, 14, 15, 16, 10));
}

TEST(Residual, TheShortLastChunkIsKeptToo) {
  Residual residual(kGeometry);
  residual.Combine(std::vector<float>(7, 1));
  residual.Settle([](uint32_t chunk) { return chunk == 2; });
  EXPECT_THAT(residual.values(), ElementsAre(0, 0, 0, 0, 0, 0, 1));
}

TEST(Residual, AWindowThatNeverClosedKeepsEverything) {
  Residual residual(kGeometry);
  for (int round = 1; round <= 5; ++round) {
    EXPECT_THAT(residual.Combine(std::vector<float>(7, 2)), Each(2.0f * static_cast<float>(round)));
    residual.SettleAllLost();
  }
  residual.Combine(std::vector<float>(7, 2));
  residual.Settle([](uint32_t) { return false; });
  EXPECT_THAT(residual.values(), Each(0));
}

// A worker that loses chunks at random: delivered + held == produced after every round.
TEST(Residual, NothingIsLostOnlyDelayed) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    const ChunkGeometry geometry{.count = 200 + random.Below(50), .chunk_elements = 16};
    Residual residual(geometry);
    std::vector<double> produced(geometry.count, 0);
    std::vector<double> delivered(geometry.count, 0);
    const double loss = random.Uniform();
    for (int round = 0; round < 50; ++round) {
      std::vector<float> gradient(geometry.count);
      for (size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = static_cast<float>(random.Below(201)) - 100.0f;
        produced[i] += gradient[i];
      }
      const std::span<const float> sent = residual.Combine(gradient);
      std::vector<bool> lost(geometry.chunks());
      for (uint32_t chunk = 0; chunk < geometry.chunks(); ++chunk) {
        lost[chunk] = random.Chance(loss);
        if (lost[chunk]) continue;
        for (uint32_t i = 0; i < geometry.Length(chunk); ++i) {
          delivered[geometry.First(chunk) + i] += sent[geometry.First(chunk) + i];
        }
      }
      residual.Settle([&](uint32_t chunk) { return lost[chunk]; });
      for (size_t i = 0; i < produced.size(); ++i) {
        ASSERT_EQ(delivered[i] + residual.values()[i], produced[i])
            << "seed " << seed << " round " << round << " element " << i;
      }
    }
  }
}

// The whole loop: four workers repay, the server fills with the policy that goes with it. Over the run the
// means that were applied, times the number of workers, and what the workers still hold is what they
// produced.
TEST(Residual, AppliedPlusHeldIsProducedThroughTheServersMean) {
  constexpr uint64_t kSeed = 5;
  constexpr size_t kWorkers = 4;  // a power of two: dividing and multiplying again is exact
  Random random(kSeed);
  const ChunkGeometry geometry{.count = 64, .chunk_elements = 8};
  std::vector<Residual> residuals(kWorkers, Residual(geometry));
  std::vector<double> produced(geometry.count, 0);
  std::vector<double> applied(geometry.count, 0);
  for (int round = 0; round < 100; ++round) {
    std::vector<float> sum(geometry.count, 0);
    std::vector<double> missing(geometry.chunks(), 0);
    for (Residual& residual : residuals) {
      std::vector<float> gradient(geometry.count);
      for (size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = static_cast<float>(random.Below(21)) - 10.0f;
        produced[i] += gradient[i];
      }
      const std::span<const float> sent = residual.Combine(gradient);
      residual.Settle([&](uint32_t chunk) {
        const bool lost = random.Chance(0.3);
        if (lost) {
          missing[chunk] += 1;
        } else {
          for (uint32_t i = 0; i < geometry.Length(chunk); ++i) {
            sum[geometry.First(chunk) + i] += sent[geometry.First(chunk) + i];
          }
        }
        return lost;
      });
    }
    for (uint32_t chunk = 0; chunk < geometry.chunks(); ++chunk) {
      const ChunkTally tally{.arrived = kWorkers - missing[chunk], .filled = missing[chunk]};
      const std::span<float> values = geometry.Elements(std::span<float>(sum), chunk);
      FillMean(FillPolicy::kResidual, tally, values, {}, values);
    }
    for (size_t i = 0; i < sum.size(); ++i) applied[i] += static_cast<double>(sum[i]) * kWorkers;
  }
  for (size_t i = 0; i < produced.size(); ++i) {
    double held = 0;
    for (const Residual& residual : residuals) held += residual.values()[i];
    EXPECT_EQ(applied[i] + held, produced[i]) << "seed " << kSeed << " element " << i;
  }
}

}  // namespace
}  // namespace longhaul::codec
