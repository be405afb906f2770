// The in-window rule (loss below the target, above it, above the halve threshold) in numbers.
#include "transport/core/rate/loss_response.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace longhaul::transport {
namespace {

constexpr ByteCount kDatagram{1452};
constexpr double kTarget = 0.05;
constexpr double kThreshold = 0.3;

class LossResponseTest : public testing::Test {
 protected:
  LossVerdict Round(int packets, double loss, double target = kTarget, double mean_burst = 1) {
    const auto lost = static_cast<int64_t>(packets * loss + 0.5);
    return response_.OnRound(kDatagram * (packets - lost), kDatagram * lost, target, kThreshold, mean_burst);
  }
  LossResponse response_{kDatagram};
};

TEST_F(LossResponseTest, NoLossOrLessThanTheTargetRaises) {
  EXPECT_EQ(Round(300, 0), LossVerdict::kRaise);
  EXPECT_EQ(Round(300, 0.04), LossVerdict::kRaise);
}

TEST_F(LossResponseTest, FromTheTargetUpTheRateIsHeld) {
  EXPECT_EQ(Round(300, 0.10), LossVerdict::kHold);
  EXPECT_EQ(Round(300, 0.25), LossVerdict::kHold);
  EXPECT_EQ(Round(300, 0.01), LossVerdict::kRaise);
}

TEST_F(LossResponseTest, AboveTheBubbleThresholdTheRateHalvesOncePerRound) {
  EXPECT_EQ(Round(300, 0.5), LossVerdict::kHalve);
  EXPECT_EQ(Round(300, 0.5), LossVerdict::kHold);  // tells of packets sent before the halving
  EXPECT_EQ(Round(300, 0.5), LossVerdict::kHalve);
}

TEST_F(LossResponseTest, SmallRoundsArePutTogether) {
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Round(5, 0.8), LossVerdict::kRaise);
  EXPECT_EQ(Round(5, 0.8), LossVerdict::kHalve);
}

TEST_F(LossResponseTest, AWeakSignHoldsAndALastingOneHalves) {
  // 40 % of 50 packets may be chance at 30 %; 40 % of 300 is not.
  EXPECT_EQ(Round(50, 0.40), LossVerdict::kHold);
  int rounds = 1;
  while (Round(50, 0.40) != LossVerdict::kHalve) ASSERT_LT(++rounds, 10);
}

TEST_F(LossResponseTest, ATargetAboveTheThresholdMovesTheThreshold) {
  EXPECT_EQ(Round(1000, 0.35, 0.36), LossVerdict::kRaise);
  EXPECT_EQ(Round(1000, 0.70, 0.52), LossVerdict::kHalve);
}

TEST_F(LossResponseTest, LossesInRunsNeedMoreEvidence) {
  EXPECT_EQ(Round(200, 0.12), LossVerdict::kHold);
  EXPECT_EQ(Round(200, 0.12, kTarget, 10), LossVerdict::kRaise);  // two runs of twelve
  EXPECT_EQ(Round(2000, 0.12, kTarget, 10), LossVerdict::kHold);
}

TEST_F(LossResponseTest, TwentyPercentRandomLossHardlyEverHalves) {
  Random random(17);
  int halved = 0;
  int held = 0;
  for (int round = 0; round < 5000; ++round) {
    int lost = 0;
    for (int i = 0; i < 25; ++i) lost += random.Chance(0.2) ? 1 : 0;
    const LossVerdict verdict =
        response_.OnRound(kDatagram * int64_t{25 - lost}, kDatagram * int64_t{lost}, 0.22, kThreshold, 1);
    halved += verdict == LossVerdict::kHalve ? 1 : 0;
    held += verdict == LossVerdict::kHold ? 1 : 0;
  }
  EXPECT_LE(halved, 50);
  EXPECT_LE(held, 750);
}

}  // namespace
}  // namespace longhaul::transport
