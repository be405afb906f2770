#include "transport/core/path/black_hole_detector.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"

namespace longhaul::transport {
namespace {

constexpr int kFew = BlackHoleDetector::kSuspicious;
constexpr Duration kRoundTrip = std::chrono::milliseconds(40);

// A sender that sends kPerRoundTrip packets in a round trip.
class BlackHoles : public testing::Test {
 protected:
  static constexpr wire::PacketNumber kPerRoundTrip = kFew - 1;

  void Acked(wire::PacketNumber number, int64_t bytes) { detector_.OnPacketAcked(number, bytes); }
  void Lost(wire::PacketNumber number, int64_t bytes) {
    detector_.OnPacketLost(number, bytes, Instant() + number * (kRoundTrip / kPerRoundTrip));
  }
  void LostFrom(wire::PacketNumber first, int count, int64_t bytes) {
    for (int i = 0; i < count; ++i) Lost(first + static_cast<unsigned>(i), bytes);
  }
  bool found() const { return detector_.found(kRoundTrip); }

  BlackHoleDetector detector_{1200};
};

TEST_F(BlackHoles, LargeOnesLostForMoreThanARoundTripWithoutALaterArrivalAreOne) {
  Acked(9, 1440);
  LostFrom(10, kFew, 1440);
  EXPECT_FALSE(found());  // of one round trip
  Lost(10 + kFew, 1440);
  EXPECT_TRUE(found());
  detector_.Reset(100);
  EXPECT_FALSE(found());
  LostFrom(50, 50, 1440);
  EXPECT_FALSE(found());  // sent before the sender reacted
  LostFrom(100, kFew + 1, 1440);
  EXPECT_TRUE(found());
}

TEST_F(BlackHoles, AFewOverALongTimeAreNone) {
  for (int i = 0; i < kFew - 1; ++i) Lost(10 * static_cast<unsigned>(i), 1440);
  EXPECT_FALSE(found());
  Lost(10 * (kFew - 1), 1440);
  EXPECT_TRUE(found());
}

// The end of a window at a queue that is full: whatever comes last is dropped, and nothing as large follows.
TEST_F(BlackHoles, AQueueThatOverflowsIsNone) {
  for (int window = 0; window < 10; ++window) {
    SCOPED_TRACE(window);
    const auto first = static_cast<wire::PacketNumber>(100 * window);
    Acked(first, 1440);
    // Twenty at once.
    for (int i = 1; i <= 20; ++i) {
      detector_.OnPacketLost(first + static_cast<unsigned>(i), 1440, Instant() + window * 10 * kRoundTrip);
    }
    EXPECT_FALSE(found());
  }
}

TEST_F(BlackHoles, WhatALaterPacketOfThatSizeOvertookIsOrdinaryLoss) {
  Acked(100, 1440);
  LostFrom(10, 50, 1452);
  EXPECT_FALSE(found());  // 1440 and 1452 are of one step
}

TEST_F(BlackHoles, AnArrivalOfThatSizeClearsTheSuspicion) {
  for (int round = 0; round < 10; ++round) {
    const auto base = static_cast<wire::PacketNumber>(100 * round);
    LostFrom(base, kFew - 1, 1440);
    Acked(base + 50, 1440);
    EXPECT_FALSE(found());
  }
}

TEST_F(BlackHoles, SmallerArrivalsDoNotClearIt) {
  for (unsigned i = 0; i < kFew; ++i) {
    Lost(2 * i, 1440);
    Acked(2 * i + 1, 1300);
  }
  EXPECT_TRUE(found());
}

TEST_F(BlackHoles, SmallPacketsSayNothing) {
  LostFrom(0, 100, 1200);
  EXPECT_FALSE(found());
}

TEST_F(BlackHoles, RandomLossOfABulkFlowIsNone) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    detector_ = BlackHoleDetector(1200);
    // Fates are known three packets late, as loss detection has it.
    std::vector<bool> lost;
    for (wire::PacketNumber n = 0; n < 20'000; ++n) {
      lost.push_back(random.Chance(0.2));
      if (!lost[n]) Acked(n, 1440);
      if (n >= 3 && lost[n - 3]) Lost(n - 3, 1440);
    }
    EXPECT_FALSE(found());
  }
}

}  // namespace
}  // namespace longhaul::transport
