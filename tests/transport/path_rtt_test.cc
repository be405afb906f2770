// Which round-trip times count: what overtakes does not, a shorter path does, a longer one is noticed in
// pauses.
#include "transport/core/recovery/path_rtt.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/random.h"
#include "transport/core/recovery/ack_tracker.h"
#include "transport/core/recovery/empty_path.h"

namespace longhaul::transport {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// A flow of a packet each half millisecond whose ACKs come in the order in which packets arrive.
class Flow {
 public:
  // Sends for `time`; rtt_of: of a packet that leaves now.
  template <typename Rtt>
  void Run(Duration time, Rtt rtt_of) {
    const Instant end = now_ + time;
    for (; now_ < end; now_ += microseconds(500)) {
      SentPacket packet;
      packet.number = next_;
      packet.sent_time = now_;
      packet.bytes = ByteCount(1400);
      packet.ack_eliciting = packet.in_flight = true;
      loss_.OnPacketSent(std::move(packet));
      arrivals_.emplace(now_ + rtt_of(), next_++);
      for (; !arrivals_.empty() && arrivals_.begin()->first <= now_; arrivals_.erase(arrivals_.begin())) {
        Arrive(arrivals_.begin()->second, arrivals_.begin()->first);
      }
    }
  }

  Duration least = Duration::max();       // of the times that counted since the last void minimum
  Duration least_void = Duration::max();  // of those that a void minimum ended
  Duration largest{0};
  int voids = 0;
  PathRtt path;
  RttEstimator rtt;
  const LossDetection& loss() const { return loss_; }
  Instant now() const { return now_; }

 private:
  void Arrive(wire::PacketNumber number, Instant at) {
    tracker_.OnPacketReceived(number, true, false, at);
    const auto outcome = loss_.OnAckReceived(tracker_.BuildAck(at), at);
    ASSERT_TRUE(outcome.ok());
    const PathRtt::Sample sample = path.OnAck(outcome.value(), rtt, at);
    if (sample.void_minimum) {
      ++voids;
      least_void = std::min(least_void, least);
      least = Duration::max();
      largest = Duration(0);
    }
    if (sample.latest == Duration::zero()) return;
    EXPECT_GT(sample.adjusted, Duration(0));
    least = std::min(least, sample.latest);
    largest = std::max(largest, sample.latest);
  }

  LossDetection loss_{&rtt};
  AckTracker tracker_;
  std::multimap<Instant, wire::PacketNumber> arrivals_;
  wire::PacketNumber next_ = 0;
  Instant now_;
};

Duration Steady() { return milliseconds(20); }

TEST(PathRtt, InOrderEveryTimeCounts) {
  Flow flow;
  flow.Run(milliseconds(200), Steady);
  EXPECT_EQ(flow.least, milliseconds(20));
  flow.Run(milliseconds(200), [] { return milliseconds(22); });
  EXPECT_EQ(flow.largest, milliseconds(22));
  EXPECT_EQ(flow.voids, 0);
}

TEST(PathRtt, WhatOvertakesIsNotThePath) {
  Random random(7);
  Flow flow;
  flow.Run(milliseconds(200), Steady);
  flow.Run(milliseconds(1000), [&] { return random.Chance(0.3) ? milliseconds(2) : milliseconds(20); });
  EXPECT_EQ(flow.voids, 1);
  EXPECT_EQ(flow.least_void, milliseconds(20)) << "the first that overtook waited until it was known for one";
  EXPECT_TRUE(flow.path.reordered(flow.now()));
  // The mean is 0.7 x 20 + 0.3 x 2.
  EXPECT_GT(flow.least, milliseconds(10));
  EXPECT_LT(flow.least, milliseconds(15));
  EXPECT_LE(flow.largest, milliseconds(21)) << "as long as there is no mean, the one of before counts";
}

TEST(PathRtt, WhenOrderReturnsThePathIsMeasuredAnew) {
  Random random(7);
  Flow flow;
  flow.Run(milliseconds(1000), [&] { return random.Chance(0.3) ? milliseconds(2) : milliseconds(20); });
  flow.Run(milliseconds(1000), Steady);
  EXPECT_EQ(flow.voids, 2);
  EXPECT_FALSE(flow.path.reordered(flow.now()));
  EXPECT_EQ(flow.least, milliseconds(20));
}

TEST(PathRtt, APathThatBecomesShorterIsBelieved) {
  Flow flow;
  flow.Run(milliseconds(200), Steady);
  flow.Run(milliseconds(1000), [] { return milliseconds(8); });
  EXPECT_EQ(flow.least, milliseconds(8));
  Flow little;
  little.Run(milliseconds(200), Steady);
  little.Run(milliseconds(30), [] { return milliseconds(16); });
  EXPECT_EQ(little.least, milliseconds(20)) << "a round trip later";
  little.Run(milliseconds(30), [] { return milliseconds(16); });
  EXPECT_EQ(little.least, milliseconds(16));
}

// The path is longer than it was once: what overtakes there is slower than that, and is as little the path.
TEST(PathRtt, TheMinimumOfAShorterPathIsForgotten) {
  Flow flow;
  flow.Run(milliseconds(200), Steady);
  const auto longer = [] { return milliseconds(200); };
  flow.Run(2 * PathRtt::kMinimumTime + milliseconds(500), longer);
  flow.least = Duration::max();
  flow.Run(microseconds(500), [] { return milliseconds(100); });
  flow.Run(milliseconds(500), longer);
  EXPECT_EQ(flow.least, milliseconds(200));
}

TEST(PathRtt, JitterIsNoReordering) {
  Random random(7);
  Flow flow;
  flow.Run(milliseconds(1000), [&] { return milliseconds(20) + microseconds(random.Below(2000)); });
  EXPECT_EQ(flow.voids, 0);
  EXPECT_LT(flow.least, milliseconds(20) + microseconds(100));
}

// Of packets that are known to come late none is given up before, whichever of the two thresholds it would
// be.
TEST(PathRtt, WhatComesLateIsNotLost) {
  Random random(7);
  Flow flow;
  const auto two_ways = [&] { return random.Chance(0.3) ? milliseconds(2) : milliseconds(20); };
  flow.Run(milliseconds(500), two_ways);
  const uint64_t lost = flow.loss().packets_lost();
  EXPECT_EQ(flow.loss().packets_spurious(), lost) << "nothing is lost";
  flow.Run(milliseconds(5000), two_ways);
  EXPECT_LE(flow.loss().packets_lost() - lost, 10u) << "of 10,000";
  EXPECT_GT(flow.rtt.smoothed_rtt(), milliseconds(5)) << "those that come late are in it";
}

// A peer may name a packet as late as it likes.
TEST(PathRtt, OneThatIsNamedMuchTooLateMovesLittle) {
  RttEstimator rtt;
  LossDetection loss(&rtt);
  PathRtt path;
  Instant now = Instant() + std::chrono::seconds(1);
  wire::PacketNumber newest = 0;
  const auto ack = [&](wire::PacketNumber number, Instant at) {
    wire::AckFrame frame;
    newest = std::max(newest, number);
    frame.ranges = {{newest, newest}};
    if (number < newest) frame.ranges.push_back({number, number});
    const auto outcome = loss.OnAckReceived(frame, at);
    ASSERT_TRUE(outcome.ok());
    path.OnAck(outcome.value(), rtt, at);
  };
  for (wire::PacketNumber number = 0; number < 2000; ++number, now += milliseconds(21)) {
    SentPacket packet;
    packet.number = number;
    packet.sent_time = now;
    packet.bytes = ByteCount(1400);
    packet.ack_eliciting = packet.in_flight = true;
    loss.OnPacketSent(std::move(packet));
    if (number % 100 != 50) ack(number, now + milliseconds(20));
  }
  const Duration pto = rtt.PtoBase(AckTracker::kMaxAckDelay);
  for (wire::PacketNumber number = 50; number < 2000; number += 100) ack(number, now);
  EXPECT_LE(rtt.smoothed_rtt(), std::chrono::seconds(1)) << "twenty of them, up to 41 s late";
  EXPECT_LT(pto, milliseconds(60));
  EXPECT_FALSE(path.reordered(now + std::chrono::seconds(20)));
}

TEST(EmptyPath, PausesInARowShowALongerPath) {
  EmptyPath path;
  const auto pause = [&](Duration rtt, bool longer) {
    path.OnFirstPacket();
    const Duration found = path.OnSample(rtt, longer);
    EXPECT_EQ(path.OnSample(milliseconds(1), true), Duration(0)) << "one time a pause";
    return found;
  };
  EXPECT_EQ(path.OnSample(milliseconds(30), true), Duration(0)) << "without a pause there may be a queue";
  for (int i = 1; i < EmptyPath::kPauses; ++i) EXPECT_EQ(pause(milliseconds(30), true), Duration(0));
  EXPECT_EQ(pause(milliseconds(10), false), Duration(0)) << "others' bursts";
  for (int i = 1; i < EmptyPath::kPauses; ++i) EXPECT_EQ(pause(milliseconds(29 + i), true), Duration(0));
  EXPECT_EQ(pause(milliseconds(34), true), milliseconds(30)) << "the least of them";
  EXPECT_EQ(pause(milliseconds(32), true), Duration(0)) << "and from the beginning again";
}

}  // namespace
}  // namespace longhaul::transport
