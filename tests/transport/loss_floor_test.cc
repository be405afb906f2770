// What the path loses by itself, over a bounded memory.
#include "transport/core/rate/loss_floor.h"

#include <gtest/gtest.h>

namespace longhaul::transport {
namespace {

constexpr ByteCount kDatagram{1452};

TEST(LossFloor, NothingIsKnownBeforeTwentyPackets) {
  LossFloor floor(kDatagram, 400);
  floor.OnPackets(kDatagram * int64_t{10}, kDatagram * int64_t{9});
  EXPECT_FALSE(floor.known());
  EXPECT_EQ(floor.value(), 0);
  floor.OnPackets(kDatagram * int64_t{1}, ByteCount(0));
  EXPECT_TRUE(floor.known());
  EXPECT_NEAR(floor.value(), 0.45, 0.001);
}

TEST(LossFloor, TheUpperBoundIsWideWhereLittleIsKnown) {
  LossFloor floor(kDatagram, 3000);
  EXPECT_EQ(floor.upper(), 1);
  floor.OnPackets(kDatagram * int64_t{20}, ByteCount(0));
  EXPECT_NEAR(floor.upper(), 0.1, 0.001);
  floor.OnPackets(kDatagram * int64_t{2980}, ByteCount(0));
  EXPECT_LT(floor.upper(), 0.001);
  floor.OnPackets(kDatagram * int64_t{2700}, kDatagram * int64_t{300});
  EXPECT_NEAR(floor.upper(), 0.1 + 0.0115, 0.001);
}

TEST(LossFloor, TheLastPacketsCount) {
  LossFloor floor(kDatagram, 400);
  floor.OnPackets(kDatagram * int64_t{800}, kDatagram * int64_t{200});
  EXPECT_NEAR(floor.value(), 0.2, 0.001);
  floor.OnPackets(kDatagram * int64_t{200}, ByteCount(0));
  EXPECT_NEAR(floor.value(), 0.1, 0.001);
  floor.OnPackets(kDatagram * int64_t{400}, ByteCount(0));
  EXPECT_NEAR(floor.value(), 0.0, 0.001);
}

}  // namespace
}  // namespace longhaul::transport
