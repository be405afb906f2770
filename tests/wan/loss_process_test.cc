#include "wan/link_model.h"

#include <gtest/gtest.h>

#include <cmath>

namespace longhaul::wan {
namespace {

constexpr int kPackets = 1'000'000;
constexpr uint64_t kSeed = 20240601;

struct Measured {
  double loss = 0;
  double mean_burst = 0;
};

Measured Measure(double average, double burst) {
  LossProcess process(average, burst, Random(kSeed));
  int lost = 0, bursts = 0;
  bool before = false;
  for (int i = 0; i < kPackets; ++i) {
    const bool now = process.Next();
    lost += now;
    bursts += now && !before;
    before = now;
  }
  return {static_cast<double>(lost) / kPackets, bursts == 0 ? 0 : static_cast<double>(lost) / bursts};
}

TEST(LossProcess, BernoulliLosesTheConfiguredShareWithoutMemory) {
  for (const double p : {0.001, 0.01, 0.05, 0.2, 0.5}) {
    const Measured m = Measure(p, 0);
    const double five_sigma = 5 * std::sqrt(p * (1 - p) / kPackets);
    EXPECT_NEAR(m.loss, p, five_sigma) << "seed " << kSeed;
    EXPECT_NEAR(m.mean_burst, 1 / (1 - p), 0.05) << "independent losses cluster only by chance";
  }
}

TEST(LossProcess, GilbertElliottHasTheConfiguredAverageAndBurstLength) {
  for (const double loss : {0.01, 0.05, 0.2}) {
    for (const double burst : {2.0, 10.0, 50.0}) {
      const Measured m = Measure(loss, burst);
      // A burst is one draw: the average has the variance of about loss * kPackets / burst of them.
      const double five_sigma = 5 * loss * std::sqrt(2 * burst / (loss * kPackets));
      EXPECT_NEAR(m.loss, loss, five_sigma) << "burst " << burst << " seed " << kSeed;
      EXPECT_NEAR(m.mean_burst, burst, burst * 5 * std::sqrt(burst / (loss * kPackets)))
          << "loss " << loss << " seed " << kSeed;
    }
  }
}

TEST(LossProcess, TheFirstPacketIsAsLikelyLostAsAnyOther) {
  int lost = 0;
  constexpr int kRuns = 20'000;
  for (int run = 0; run < kRuns; ++run)
    lost += LossProcess(0.05, 10, Random(static_cast<uint64_t>(run))).Next();
  EXPECT_NEAR(static_cast<double>(lost) / kRuns, 0.05, 0.008);
}

TEST(LossProcess, ZeroLosesNothingAndHundredPercentEverything) {
  EXPECT_EQ(Measure(0, 0).loss, 0);
  EXPECT_EQ(Measure(0, 10).loss, 0);
  EXPECT_EQ(Measure(1, 0).loss, 1);
}

TEST(LossProcess, ImpossiblePairsAreNamed) {
  EXPECT_TRUE(GilbertElliott::Possible(0.5, 1));
  EXPECT_FALSE(GilbertElliott::Possible(0.51, 1));
  EXPECT_FALSE(GilbertElliott::Possible(0.1, 0.9));
  EXPECT_FALSE(GilbertElliott::Possible(1, 100));
  EXPECT_FALSE(GilbertElliott::Possible(std::nan(""), 10));
}

}  // namespace
}  // namespace longhaul::wan
