// The in-window rule (loss below the target, above it, above the bubble threshold) in numbers.
#include "transport/core/rate/loss_response.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace longhaul::transport {
namespace {

constexpr ByteCount kDatagram{1452};
const Bandwidth kRate = Bandwidth::Mbps(100);

class LossResponseTest : public testing::Test {
 protected:
  LossVerdict Round(int packets, double loss, double floor = 0) {
    const auto lost = static_cast<int64_t>(packets * loss + 0.5);
    response_.OnRound(kDatagram * (packets - lost), kDatagram * lost, floor, kRate);
    return response_.verdict();
  }
  LossResponse response_{0.05, 0.3, kDatagram};
};

TEST_F(LossResponseTest, NoLossOrLessThanTheTargetRaises) {
  EXPECT_EQ(Round(300, 0), LossVerdict::kRaise);
  EXPECT_EQ(Round(300, 0.04), LossVerdict::kRaise);
  EXPECT_EQ(response_.bound(), Bandwidth::Max());
}

TEST_F(LossResponseTest, FromTheTargetUpTheRateIsHeld) {
  EXPECT_EQ(Round(300, 0.10), LossVerdict::kHold);
  EXPECT_EQ(Round(300, 0.25), LossVerdict::kHold);
  EXPECT_EQ(response_.bound(), Bandwidth::Max());
  EXPECT_EQ(Round(300, 0.01), LossVerdict::kRaise);
}

TEST_F(LossResponseTest, FromTheBubbleThresholdUpTheRateIsHalvedOncePerRoundTrip) {
  EXPECT_EQ(Round(300, 0.5), LossVerdict::kHalve);
  EXPECT_EQ(response_.bound(), Bandwidth::Mbps(50));
  Round(300, 0.5);  // tells of packets sent before the halving
  EXPECT_EQ(response_.bound(), Bandwidth::Mbps(50));
  Round(300, 0.5);
  EXPECT_EQ(response_.bound(), Bandwidth::Mbps(25));
}

TEST_F(LossResponseTest, AfterHalvingTheRateRecoversRoundByRound) {
  Round(300, 0.5);
  Round(300, 0);
  EXPECT_NEAR(response_.bound().mbps(), 62.5, 0.1);
  for (int i = 0; i < 3; ++i) Round(300, 0);
  EXPECT_EQ(response_.bound(), Bandwidth::Max());
}

TEST_F(LossResponseTest, SmallRoundsArePutTogether) {
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Round(5, 0.8), LossVerdict::kRaise);
  EXPECT_EQ(Round(5, 0.8), LossVerdict::kHalve);
}

TEST_F(LossResponseTest, AWeakSignHoldsAndALastingOneHalves) {
  // 36 % of 50 packets may be chance at 25 %; 36 % of 300 is not.
  EXPECT_EQ(Round(50, 0.36), LossVerdict::kHold);
  EXPECT_EQ(response_.bound(), Bandwidth::Max());
  int rounds = 1;
  while (Round(50, 0.36) != LossVerdict::kHalve) ASSERT_LT(++rounds, 10);
  EXPECT_EQ(response_.bound(), Bandwidth::Mbps(50));
}

TEST_F(LossResponseTest, WhatThePathLosesByItselfIsNoReasonToHold) {
  EXPECT_EQ(Round(300, 0.10, 0.10), LossVerdict::kRaise);
  EXPECT_EQ(Round(300, 0.20, 0.10), LossVerdict::kHold);
  EXPECT_EQ(Round(1000, 0.35, 0.33), LossVerdict::kRaise);
  EXPECT_EQ(Round(1000, 0.70, 0.60), LossVerdict::kHalve);  // that much is never believed to be the path's
}

TEST_F(LossResponseTest, TwentyPercentRandomLossHardlyEverHalves) {
  Random random(17);
  int halved = 0;
  for (int round = 0; round < 5000; ++round) {
    int lost = 0;
    for (int i = 0; i < 25; ++i) lost += random.Chance(0.2) ? 1 : 0;
    response_.OnRound(kDatagram * int64_t{25 - lost}, kDatagram * int64_t{lost}, 0.2, kRate);
    halved += response_.verdict() == LossVerdict::kHalve ? 1 : 0;
  }
  EXPECT_LE(halved, 50);  // measured: 24
}

}  // namespace
}  // namespace longhaul::transport
