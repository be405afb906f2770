// When an ACK is due, what it says, and what counts as a duplicate.
#include "transport/core/recovery/ack_tracker.h"

#include <gtest/gtest.h>

#include <set>

#include "base/random.h"

namespace longhaul::transport {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

class AckTrackerTest : public testing::Test {
 protected:
  void Receive(wire::PacketNumber number, bool eliciting = true) {
    ASSERT_FALSE(acks_.IsDuplicate(number)) << number;
    acks_.OnPacketReceived(number, eliciting, false, now_);
  }

  AckTracker acks_;
  Instant now_ = Instant::FromNanoseconds(1'000'000'000);
};

TEST_F(AckTrackerTest, NothingReceivedNothingToSay) {
  EXPECT_FALSE(acks_.ShouldAck(now_));
  EXPECT_TRUE(acks_.Deadline().IsInfinite());
  acks_.RequestImmediateAck();
  EXPECT_FALSE(acks_.ShouldAck(now_));
  EXPECT_TRUE(acks_.Deadline().IsInfinite());
}

TEST_F(AckTrackerTest, SixteenPacketsOrFiveMilliseconds) {
  for (wire::PacketNumber n = 0; n < 15; ++n) Receive(n);
  EXPECT_FALSE(acks_.ShouldAck(now_));
  EXPECT_EQ(acks_.Deadline(), now_ + milliseconds(5));
  EXPECT_TRUE(acks_.ShouldAck(now_ + milliseconds(5)));
  Receive(15);
  EXPECT_TRUE(acks_.ShouldAck(now_));
}

TEST_F(AckTrackerTest, AShortPathWaitsAQuarterOfItsRoundTrip) {
  acks_.SetSmoothedRtt(milliseconds(4));
  Receive(0);
  EXPECT_EQ(acks_.Deadline(), now_ + milliseconds(1));
  acks_.SetSmoothedRtt(milliseconds(100));
  EXPECT_EQ(acks_.Deadline(), now_ + milliseconds(5));
}

TEST_F(AckTrackerTest, AnEighthOfALargeFlightWaits) {
  acks_.SetSmoothedRtt(milliseconds(100));
  // 1000 packets per round trip, the flight that the peer keeps up.
  for (wire::PacketNumber n = 0; n < 3000; ++n) {
    Receive(n);
    if (acks_.ShouldAck(now_)) acks_.BuildAck(now_);
    now_ += microseconds(100);
  }
  acks_.BuildAck(now_);
  int packets = 0;
  for (wire::PacketNumber n = 3000; !acks_.ShouldAck(now_); ++n, ++packets) Receive(n);
  EXPECT_NEAR(packets, 1000 / 8, 3);
}

TEST_F(AckTrackerTest, AGapIsReportedAtOnceAndSoIsItsFilling) {
  Receive(0);
  Receive(1);
  acks_.BuildAck(now_);
  Receive(3);
  EXPECT_TRUE(acks_.ShouldAck(now_));
  acks_.BuildAck(now_);
  Receive(4);
  EXPECT_FALSE(acks_.ShouldAck(now_));  // the gap is old news
  Receive(2);
  EXPECT_TRUE(acks_.ShouldAck(now_));
}

TEST_F(AckTrackerTest, AcksOfAcksAreNotAcknowledgedOnTheirOwn) {
  Receive(0);
  acks_.BuildAck(now_);
  Receive(5, false);  // a gap, but two peers would answer each other's ACKs for ever
  EXPECT_FALSE(acks_.HasPending());
  EXPECT_TRUE(acks_.Deadline().IsInfinite());
}

TEST_F(AckTrackerTest, AnAckNamesTheNewestRangesFirstWithTheDelayOfTheLargest) {
  Receive(0);
  Receive(1);
  Receive(5);
  now_ += milliseconds(2);
  Receive(3);
  now_ += microseconds(500);
  acks_.SetHostDrops(7);
  const wire::AckFrame ack = acks_.BuildAck(now_);
  const std::vector<wire::AckRange> expected = {{5, 5}, {3, 3}, {0, 1}};
  EXPECT_EQ(ack.ranges, expected);
  EXPECT_EQ(ack.ack_delay_us, 2500u);
  EXPECT_EQ(ack.host_drops, 7u);
  EXPECT_FALSE(acks_.HasPending());
}

TEST_F(AckTrackerTest, CongestionMarksAreCounted) {
  acks_.OnPacketReceived(0, true, true, now_);
  acks_.OnPacketReceived(1, true, false, now_);
  acks_.OnPacketReceived(2, true, true, now_);
  EXPECT_EQ(acks_.BuildAck(now_).ecn_ce, 2u);
}

TEST_F(AckTrackerTest, NoMoreRangesThanAFrameHolds) {
  for (wire::PacketNumber n = 0; n < 1000; ++n) Receive(2 * n);
  const wire::AckFrame ack = acks_.BuildAck(now_);
  EXPECT_EQ(ack.ranges.size(), wire::kMaxAckRanges);
  EXPECT_EQ(ack.ranges.front().largest, 1998u);
}

TEST_F(AckTrackerTest, WhatThePeerKnowsIsNotRepeatedButStaysADuplicate) {
  for (wire::PacketNumber n = 0; n < 2000; n += 2) Receive(n);
  acks_.BuildAck(now_);
  acks_.OnAckAcknowledged(1998);
  Receive(1999);
  const wire::AckFrame ack = acks_.BuildAck(now_);
  EXPECT_GE(ack.ranges.back().smallest, 1998u - 256u);
  EXPECT_TRUE(acks_.IsDuplicate(100));
  EXPECT_FALSE(acks_.IsDuplicate(101));  // late, but never seen
}

TEST_F(AckTrackerTest, ALatePacketIsReportedBelowAcknowledgedOnes) {
  for (wire::PacketNumber n = 10; n < 1000; ++n) Receive(n);
  acks_.BuildAck(now_);
  acks_.OnAckAcknowledged(999);
  Receive(3);
  ASSERT_TRUE(acks_.ShouldAck(now_));
  const wire::AckFrame ack = acks_.BuildAck(now_);
  EXPECT_EQ(ack.ranges.back(), (wire::AckRange{3, 3}));
}

TEST_F(AckTrackerTest, NumbersBelowTheReplayWindowAreDuplicates) {
  Receive(AckTracker::kReplayWindow + 100);
  EXPECT_TRUE(acks_.IsDuplicate(99));
  EXPECT_FALSE(acks_.IsDuplicate(100));
  EXPECT_TRUE(acks_.IsDuplicate(AckTracker::kReplayWindow + 100));
}

TEST_F(AckTrackerTest, MemoryIsBoundedAndNothingIsEverTakenTwice) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    AckTracker acks;
    std::set<wire::PacketNumber> taken;
    for (wire::PacketNumber n = 0; n < 20'000; ++n) {
      const wire::PacketNumber number = n < 64 ? n : n - random.Below(64);
      if (random.Chance(0.4) || acks.IsDuplicate(number)) continue;
      ASSERT_TRUE(taken.insert(number).second) << number;
      acks.OnPacketReceived(number, true, false, now_);
    }
    const wire::AckFrame ack = acks.BuildAck(now_);
    ASSERT_LE(ack.ranges.size(), wire::kMaxAckRanges);
    for (const wire::AckRange& range : ack.ranges) {
      for (wire::PacketNumber n = range.smallest; n <= range.largest; ++n) ASSERT_TRUE(taken.contains(n));
    }
  }
}

}  // namespace
}  // namespace longhaul::transport
