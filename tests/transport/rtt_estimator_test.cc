// The round-trip estimator against the arithmetic of RFC 9002 §5.
#include "transport/core/recovery/rtt_estimator.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace longhaul::transport
