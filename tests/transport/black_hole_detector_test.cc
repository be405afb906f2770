#include "transport/core/path/black_hole_detector.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace longhaul::transport {
namespace {

constexpr int kFew = BlackHoleDetector::kSuspicious;

TEST(BlackHoleDetector, LargeOnesLostInARowWithoutALaterArrivalAreOne) {
  BlackHoleDetector detector(1200);
  detector.OnPacketAcked(9, 1440);
  for (int i = 0; i < kFew; ++i) {
    EXPECT_FALSE(detector.found());
    detector.OnPacketLost(static_cast<wire::PacketNumber>(10 + i), 1440);
  }
  EXPECT_TRUE(detector.found());
  detector.Reset(100);
  EXPECT_FALSE(detector.found());
  for (int i = 0; i < kFew; ++i) detector.OnPacketLost(static_cast<wire::PacketNumber>(50 + i), 1440);
  EXPECT_FALSE(detector.found());  // sent before the sender reacted
}

TEST(BlackHoleDetector, WhatALaterPacketOfThatSizeOvertookIsOrdinaryLoss) {
  BlackHoleDetector detector(1200);
  detector.OnPacketAcked(100, 1440);
  for (int i = 0; i < 50; ++i) detector.OnPacketLost(static_cast<wire::PacketNumber>(10 + i), 1452);
  EXPECT_FALSE(detector.found());  // 1440 and 1452 are of one step
}

TEST(BlackHoleDetector, AnArrivalOfThatSizeClearsTheSuspicion) {
  BlackHoleDetector detector(1200);
  for (int round = 0; round < 10; ++round) {
    const auto base = static_cast<wire::PacketNumber>(100 * round);
    for (int i = 0; i < kFew - 1; ++i) detector.OnPacketLost(base + static_cast<unsigned>(i), 1440);
    detector.OnPacketAcked(base + 50, 1440);
    EXPECT_FALSE(detector.found());
  }
}

TEST(BlackHoleDetector, SmallerArrivalsDoNotClearIt) {
  BlackHoleDetector detector(1200);
  for (int i = 0; i < kFew; ++i) {
    detector.OnPacketLost(static_cast<wire::PacketNumber>(2 * i), 1440);
    detector.OnPacketAcked(static_cast<wire::PacketNumber>(2 * i + 1), 1300);
  }
  EXPECT_TRUE(detector.found());
}

TEST(BlackHoleDetector, SmallPacketsSayNothing) {
  BlackHoleDetector detector(1200);
  for (int i = 0; i < 100; ++i) detector.OnPacketLost(static_cast<wire::PacketNumber>(i), 1200);
  EXPECT_FALSE(detector.found());
}

TEST(BlackHoleDetector, RandomLossOfABulkFlowIsNone) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    BlackHoleDetector detector(1200);
    // Fates are known three packets late, as loss detection has it.
    std::vector<bool> lost;
    for (wire::PacketNumber n = 0; n < 20'000; ++n) {
      lost.push_back(random.Chance(0.2));
      if (!lost[n]) detector.OnPacketAcked(n, 1440);
      if (n >= 3 && lost[n - 3]) detector.OnPacketLost(n - 3, 1440);
    }
    EXPECT_FALSE(detector.found());
  }
}

}  // namespace
}  // namespace longhaul::transport
