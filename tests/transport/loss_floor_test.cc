// What the path loses by itself, from round trips sent at low rate.
#include "transport/core/rate/loss_floor.h"

#include <gtest/gtest.h>

namespace longhaul::transport {
namespace {

constexpr ByteCount kDatagram{1452};

TEST(LossFloor, NothingIsKnownBeforeTwentyPackets) {
  LossFloor floor(kDatagram);
  floor.OnLowRateRound(kDatagram * int64_t{10}, kDatagram * int64_t{9});
  EXPECT_EQ(floor.value(), 0);
  floor.OnLowRateRound(kDatagram * int64_t{1}, ByteCount(0));
  EXPECT_NEAR(floor.value(), 0.45, 0.001);
}

TEST(LossFloor, TheLastFourHundredPacketsCount) {
  LossFloor floor(kDatagram);
  floor.OnLowRateRound(kDatagram * int64_t{800}, kDatagram * int64_t{200});
  EXPECT_NEAR(floor.value(), 0.2, 0.001);
  floor.OnLowRateRound(kDatagram * int64_t{200}, ByteCount(0));
  EXPECT_NEAR(floor.value(), 0.1, 0.001);
  floor.OnLowRateRound(kDatagram * int64_t{400}, ByteCount(0));
  EXPECT_NEAR(floor.value(), 0.0, 0.001);
}

TEST(LossFloor, CompensationIsBounded) {
  LossFloor floor(kDatagram);
  EXPECT_EQ(floor.Compensation(), 1.0);
  floor.OnLowRateRound(kDatagram * int64_t{80}, kDatagram * int64_t{20});
  EXPECT_NEAR(floor.Compensation(), 1.25, 0.001);
  floor.OnLowRateRound(ByteCount(0), kDatagram * int64_t{400});
  EXPECT_NEAR(floor.Compensation(), 1 / 0.7, 0.001);
}

}  // namespace
}  // namespace longhaul::transport
