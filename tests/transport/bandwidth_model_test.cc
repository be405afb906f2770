// Filters of the bandwidth model, fed with hand-made round trips.
#include "transport/core/rate/bandwidth_model.h"

#include <gtest/gtest.h>

namespace longhaul::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class BandwidthModelTest : public testing::Test {
 protected:
  // One event that is a whole round trip.
  bool Round(double mbps, bool app_limited = false, bool probing = true) {
    return Round(mbps, milliseconds(50), app_limited, false, probing);
  }
  bool Round(double mbps, Duration rtt, bool app_limited, bool queue_empty, bool probing = true) {
    now_ += milliseconds(50);
    CongestionEvent e;
    e.now = now_;
    e.acked = ByteCount(10'000);
    e.sample.prior_delivered = delivered_;
    delivered_ += e.acked;
    e.delivered = delivered_;
    e.sample.valid = true;
    e.sample.delivery_rate = Bandwidth::Mbps(mbps);
    e.sample.app_limited = app_limited;
    e.latest_rtt = rtt;
    return model_.OnEvent(e, ByteCount(1000), queue_empty, probing);
  }

  BandwidthModel model_;
  ByteCount delivered_;
  Instant now_;
};

TEST_F(BandwidthModelTest, TheLargestOfTheLastRoundsIsTheEstimate) {
  Round(100);
  for (size_t i = 0; i + 1 < BandwidthModel::kBandwidthRounds; ++i) {
    Round(60);
    EXPECT_EQ(model_.bandwidth(), Bandwidth::Mbps(100)) << i;
  }
  Round(60);
  EXPECT_EQ(model_.bandwidth(), Bandwidth::Mbps(60));
}

TEST_F(BandwidthModelTest, AppLimitedSamplesRaiseButNeverAgeTheEstimate) {
  Round(10, true);
  EXPECT_EQ(model_.bandwidth(), Bandwidth::Mbps(10));
  Round(50, true);
  EXPECT_EQ(model_.bandwidth(), Bandwidth::Mbps(50));
  for (int i = 0; i < 100; ++i) Round(5, true);
  EXPECT_EQ(model_.bandwidth(), Bandwidth::Mbps(50));
  EXPECT_EQ(model_.round_count(), 102u);
}

TEST_F(BandwidthModelTest, ATrainIsAMeasurementEvenWhenTheApplicationLimits) {
  Round(100);
  for (int i = 0; i < 20; ++i) {
    CongestionEvent e;
    e.now = now_ += milliseconds(50);
    e.acked = ByteCount(10'000);
    e.sample.prior_delivered = delivered_;
    e.delivered = delivered_ += e.acked;
    e.sample.app_limited = true;
    e.sample.train_rate = Bandwidth::Mbps(70);
    model_.OnEvent(e, ByteCount(), false, true);
  }
  EXPECT_EQ(model_.bandwidth(), Bandwidth::Mbps(70));
}

TEST_F(BandwidthModelTest, ARoundEndsWithTheAckOfAPacketSentAfterItBegan) {
  CongestionEvent e;
  e.acked = ByteCount(1000);
  e.delivered = ByteCount(1000);
  EXPECT_TRUE(model_.OnEvent(e, ByteCount(), false, true));
  for (int64_t i = 2; i <= 10; ++i) {
    e.delivered = ByteCount(1000 * i);
    e.sample.prior_delivered = ByteCount(0);  // all sent before the first ACK
    EXPECT_FALSE(model_.OnEvent(e, ByteCount(100), false, true));
  }
  e.delivered = ByteCount(11'000);
  e.sample.prior_delivered = ByteCount(1000);
  EXPECT_TRUE(model_.OnEvent(e, ByteCount(), false, true));
  EXPECT_EQ(model_.last_round().acked, ByteCount(10'000));
  EXPECT_EQ(model_.last_round().lost, ByteCount(900));
}

TEST_F(BandwidthModelTest, ThreeRoundsWithoutGrowthFillThePipe) {
  double mbps = 10;
  for (int i = 0; i < 6; ++i, mbps *= 2) {
    Round(mbps);
    EXPECT_FALSE(model_.pipe_full());
  }
  const double top = mbps / 2;
  Round(top * 1.1);
  Round(top * 1.2);
  Round(top * 1.2);
  EXPECT_FALSE(model_.pipe_full());
  Round(top * 1.2);
  Round(top * 1.2);
  EXPECT_TRUE(model_.pipe_full());
}

TEST_F(BandwidthModelTest, RoundsThatDidNotTrySayNothingAboutThePipe) {
  Round(100);
  for (int i = 0; i < 20; ++i) Round(40, true);
  EXPECT_FALSE(model_.pipe_full());
  for (int i = 0; i < 20; ++i) Round(100, false, false);
  EXPECT_FALSE(model_.pipe_full());
}

TEST_F(BandwidthModelTest, TheRttMinimumExpiresAfterTenSecondsAndAnIdlePathRenewsIt) {
  Round(10, milliseconds(50), false, false);
  EXPECT_EQ(model_.min_rtt(), milliseconds(50));
  while (now_ < Instant() + seconds(11)) Round(10, milliseconds(80), false, false);
  EXPECT_TRUE(model_.MinRttExpired(now_));
  EXPECT_EQ(model_.min_rtt(), milliseconds(50));  // a queue is no reason to forget
  Round(10, milliseconds(70), false, true);
  EXPECT_EQ(model_.min_rtt(), milliseconds(70));
  EXPECT_FALSE(model_.MinRttExpired(now_));
}

TEST_F(BandwidthModelTest, MeetingTheMinimumAgainKeepsItFresh) {
  for (int i = 0; i < 1000; ++i) {
    Round(10, milliseconds(64), false, false);
    Round(10, Duration(milliseconds(64)) + milliseconds(64) / 70, false, false);
  }
  EXPECT_EQ(model_.min_rtt(), milliseconds(64));
  EXPECT_FALSE(model_.MinRttExpired(now_));
}

TEST_F(BandwidthModelTest, BdpIsZeroUntilBothEstimatesExist) {
  EXPECT_EQ(model_.Bdp(), ByteCount(0));
  Round(80);
  EXPECT_EQ(model_.Bdp(), ByteCount(500'000));
}

}  // namespace
}  // namespace longhaul::transport
