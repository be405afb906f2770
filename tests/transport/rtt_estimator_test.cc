// The round-trip estimator against the arithmetic of RFC 9002 §5.
#include "transport/core/recovery/rtt_estimator.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace longhaul::transport {
namespace {

using std::chrono::milliseconds;

TEST(RttEstimator, BeforeTheFirstSampleAThirdOfASecondIsAssumed) {
  RttEstimator rtt;
  EXPECT_FALSE(rtt.has_sample());
  EXPECT_EQ(rtt.smoothed_rtt(), milliseconds(333));
  EXPECT_EQ(rtt.PtoBase(milliseconds(5)), milliseconds(333 + 2 * 333 + 5));
}

TEST(RttEstimator, TheFirstSampleIsTakenWhole) {
  RttEstimator rtt;
  rtt.OnSample(milliseconds(50), milliseconds(5), Instant());
  EXPECT_EQ(rtt.smoothed_rtt(), milliseconds(50));
  EXPECT_EQ(rtt.rttvar(), milliseconds(25));
  EXPECT_EQ(rtt.min_rtt(), milliseconds(50));
  EXPECT_EQ(rtt.latest_rtt(), milliseconds(50));
}

TEST(RttEstimator, LaterSamplesMoveAnEighthOfTheWay) {
  RttEstimator rtt;
  rtt.OnSample(milliseconds(40), Duration(0), Instant());
  rtt.OnSample(milliseconds(80), Duration(0), Instant());
  EXPECT_EQ(rtt.smoothed_rtt(), milliseconds(45));
  EXPECT_EQ(rtt.rttvar(), milliseconds(25));  // (3 * 20 + 40) / 4
}

TEST(RttEstimator, AckDelayIsTakenOffUnlessTheResultIsBelowTheMinimum) {
  RttEstimator rtt;
  rtt.OnSample(milliseconds(40), Duration(0), Instant());
  rtt.OnSample(milliseconds(48), milliseconds(4), Instant());
  EXPECT_EQ(rtt.smoothed_rtt(), Duration(40'500'000));  // (7 * 40 + 44) / 8
  RttEstimator other;
  other.OnSample(milliseconds(40), Duration(0), Instant());
  other.OnSample(milliseconds(42), milliseconds(4), Instant());
  EXPECT_EQ(other.smoothed_rtt(), Duration(40'250'000));  // 42 - 4 < 40: the delay is not believed
}

TEST(RttEstimator, AClaimedDelayIsBoundedByTheContract) {
  RttEstimator rtt;
  rtt.OnSample(milliseconds(40), Duration(0), Instant());
  rtt.OnSample(milliseconds(840), milliseconds(700), Instant());
  EXPECT_EQ(rtt.smoothed_rtt(), Duration(milliseconds(7 * 40 + 835)) / 8);
}

TEST(RttEstimator, ABusyPeersDelayIsNoQueueButTimeOutsLeaveRoomForIt) {
  RttEstimator rtt;
  rtt.OnSample(milliseconds(40), Duration(0), Instant());
  rtt.OnSample(milliseconds(70), milliseconds(20), Instant());
  EXPECT_EQ(rtt.adjusted_rtt(), milliseconds(50));
  EXPECT_EQ(rtt.smoothed_rtt(), Duration(milliseconds(7 * 40 + 65)) / 8);  // max_ack_delay is 5 ms
  rtt.OnSample(milliseconds(42), milliseconds(20), Instant());
  EXPECT_EQ(rtt.adjusted_rtt(), milliseconds(40));  // it hides no more than the queue
  rtt.OnSample(milliseconds(240), milliseconds(190), Instant());
  EXPECT_EQ(rtt.adjusted_rtt(), milliseconds(140));
}

TEST(RttEstimator, NonsenseIsIgnored) {
  RttEstimator rtt;
  rtt.OnSample(Duration(0), Duration(0), Instant());
  rtt.OnSample(-milliseconds(3), Duration(0), Instant());
  EXPECT_FALSE(rtt.has_sample());
  rtt.OnSample(milliseconds(10), -milliseconds(30), Instant());
  rtt.OnSample(milliseconds(10), -milliseconds(30), Instant());
  EXPECT_EQ(rtt.smoothed_rtt(), milliseconds(10));
}

TEST(RttEstimator, AProbeTimeoutLeavesRoomForTheTimersGranularity) {
  RttEstimator rtt;
  for (int i = 0; i < 200; ++i) rtt.OnSample(milliseconds(1), Duration(0), Instant());
  EXPECT_LT(rtt.rttvar(), std::chrono::microseconds(1));
  EXPECT_EQ(rtt.PtoBase(milliseconds(5)), milliseconds(1 + 1 + 5));
}

using std::chrono::microseconds;

constexpr Duration kRtt = milliseconds(20);

// A path of 10 ms whose sender's clock is `clock_us` away from ours.
class Path {
 public:
  explicit Path(uint32_t clock_us) : clock_us_(clock_us) {}
  void Send(Instant at, Duration queue) {
    const auto sent_us = static_cast<uint32_t>(at.nanoseconds() / 1000) + clock_us_;
    delay.OnPacket(at + milliseconds(10) + queue, sent_us, kRtt);
  }
  QueueDelay delay;

 private:
  uint32_t clock_us_;
};

Instant At(int64_t us) { return Instant::FromNanoseconds(us * 1000); }

TEST(QueueDelayTest, KnowsTheQueueWhateverTheSendersClockSays) {
  for (const uint32_t clock : {0u, 1u, 77'000'000u, 0x7fffffffu, 0x80000000u, 0xfffffff0u}) {
    Path path(clock);
    for (int64_t us = 0; us < 50'000; us += 500) path.Send(At(us), Duration(0));
    EXPECT_EQ(path.delay.standing(), Duration(0)) << clock;
    for (int64_t us = 50'000; us < 90'000; us += 500) path.Send(At(us), milliseconds(7));
    EXPECT_EQ(path.delay.standing(), milliseconds(7)) << clock;
    for (int64_t us = 90'000; us < 130'000; us += 500) path.Send(At(us), Duration(0));
    EXPECT_EQ(path.delay.standing(), Duration(0)) << clock;
  }
}

TEST(QueueDelayTest, ABurstIsNoStandingQueue) {
  Path path(5);
  Random random(3);
  for (int64_t us = 0; us < 2'000'000; us += 500) {
    // Three of four packets wait, the fourth finds the queue empty.
    path.Send(At(us), us % 2000 == 0 ? Duration(0) : microseconds(1000 + random.Below(9000)));
    if (us > 20'000) {
      EXPECT_LT(path.delay.standing(), milliseconds(10));
    }
  }
  EXPECT_EQ(path.delay.standing(), Duration(0));
}

TEST(QueueDelayTest, FollowsALongerPathAndADriftingClock) {
  Path path(9);
  // The path becomes 30 ms longer for good: taken for a queue at first, for the path after two base times.
  for (int64_t ms = 0; ms < 1000; ms += 5) path.Send(At(ms * 1000), Duration(0));
  for (int64_t ms = 1000; ms < 22'000; ms += 5) path.Send(At(ms * 1000), milliseconds(30));
  EXPECT_EQ(path.delay.standing(), Duration(0));
  // 100 ppm: after two minutes the clocks are 12 ms further apart.
  for (int64_t ms = 22'000; ms < 142'000; ms += 5) {
    path.Send(At(ms * 1000), milliseconds(30) + Duration(ms * 100));
  }
  EXPECT_LE(path.delay.standing(), milliseconds(3));
}

// A sender that pauses shows its path where none of its packets wait.
TEST(QueueDelayTest, ALongerPathIsNoticedInPauses) {
  Path path(9);
  const auto burst = [&](int64_t from_ms, Duration longer) {
    for (int64_t us = 0; us < 50'000; us += 500) path.Send(At(from_ms * 1000 + us), longer);
  };
  for (int64_t round = 0; round < 10; ++round) burst(round * 100, Duration(0));
  for (int64_t round = 10; round < 9 + EmptyPath::kPauses; ++round) burst(round * 100, milliseconds(4));
  EXPECT_EQ(path.delay.standing(), milliseconds(4)) << "it may be others' queue";
  burst(1400, milliseconds(4));
  EXPECT_EQ(path.delay.standing(), Duration(0));
  burst(1500, Duration(0));
  burst(1600, milliseconds(4));
  EXPECT_EQ(path.delay.standing(), milliseconds(4)) << "and no longer when it is as before";
}

TEST(HostDelayTest, AReaderThatCatchesUpIsLateOneThatDoesNotHasAQueue) {
  HostDelay delay;
  // A turn each 40 ms: packets have waited 40 ms to nothing.
  for (int64_t ms = 0; ms < 2000; ++ms) {
    const Instant turn = At((ms / 40 + 1) * 40'000);
    delay.OnPacket(turn, At(ms * 1000));
    EXPECT_LE(delay.standing(), milliseconds(1));
    EXPECT_LE(delay.arrival(), At(ms * 1000 + 1000));
  }
  // From now on there are always 30 ms of packets in front.
  for (int64_t ms = 2000; ms < 3000; ++ms) {
    const Instant turn = At((ms / 40 + 1) * 40'000 + 30'000);
    delay.OnPacket(turn, At(ms * 1000));
    if (ms < 2300) continue;
    EXPECT_EQ(delay.standing(), milliseconds(31));
    EXPECT_EQ(delay.arrival(), At(ms * 1000 + 31'000));
  }
  delay.OnPacket(At(4'000'000), At(3'970'000));  // long after: nothing is known to stand
  EXPECT_EQ(delay.standing(), Duration(0));
}

TEST(HostDelayTest, TellsTheMeanAndTheLongestOfTheLastSeconds) {
  HostDelay delay;
  EXPECT_EQ(delay.mean(), Duration(0));
  Instant now = At(5'000'000);
  delay.OnPacket(now, now - milliseconds(30));
  delay.OnPacket(now, now - milliseconds(10));
  delay.OnPacket(now, Instant::Infinite());  // not known
  delay.OnPacket(now, now + milliseconds(7));
  EXPECT_EQ(delay.mean(), milliseconds(10));
  EXPECT_EQ(delay.largest(), milliseconds(30));
  now += milliseconds(1500);
  delay.OnPacket(now, now);
  EXPECT_EQ(delay.mean(), milliseconds(8));
  EXPECT_EQ(delay.largest(), milliseconds(30));
  now += milliseconds(1000);
  delay.OnPacket(now, now - milliseconds(2));
  EXPECT_EQ(delay.mean(), milliseconds(1));
  EXPECT_EQ(delay.largest(), milliseconds(2));
  now += milliseconds(2000);  // a second without packets lies between
  delay.OnPacket(now, now);
  EXPECT_EQ(delay.largest(), Duration(0));
}

}  // namespace
}  // namespace longhaul::transport
