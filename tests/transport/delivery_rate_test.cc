// Delivery-rate samples from hand-made timelines.
#include "transport/core/rate/delivery_rate.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace longhaul::transport {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr ByteCount kBytes{1250};  // 10,000 bits: 1 ms at 10 Mbit/s

class DeliveryRateTest : public testing::Test {
 protected:
  SentPacket& Send(Instant when) {
    SentPacket p;
    p.number = packets_.size();
    p.sent_time = when;
    p.bytes = kBytes;
    p.ack_eliciting = p.in_flight = true;
    sampler_.OnPacketSent(&p, in_flight_, when);
    in_flight_ += kBytes;
    packets_.push_back(p);
    return packets_.back();
  }
  RateSample Ack(size_t first, size_t last, Instant when) {
    for (size_t i = first; i <= last; ++i) {
      sampler_.OnPacketAcked(packets_[i], when);
      in_flight_ -= kBytes;
    }
    return sampler_.TakeSample(kRtt, when);
  }
  static Instant At(int64_t ms) { return Instant() + milliseconds(1000 + ms); }

  static constexpr Duration kRtt = milliseconds(50);
  DeliveryRateSampler sampler_;
  std::vector<SentPacket> packets_;
  ByteCount in_flight_;
};

TEST_F(DeliveryRateTest, ASteadyFlowMeasuresItsRate) {
  // A packet each millisecond, each acknowledged 50 ms later: 10 Mbit/s.
  RateSample sample;
  for (int64_t ms = 0; ms < 300; ++ms) {
    if (ms >= 50) sample = Ack(static_cast<size_t>(ms - 50), static_cast<size_t>(ms - 50), At(ms));
    Send(At(ms));
  }
  ASSERT_TRUE(sample.valid);
  EXPECT_FALSE(sample.app_limited);
  EXPECT_NEAR(sample.delivery_rate.mbps(), 10.0, 0.25);
  EXPECT_EQ(sample.interval, milliseconds(50));
  EXPECT_EQ(sample.lost, ByteCount(0));
}

TEST_F(DeliveryRateTest, ABurstOfAcksDoesNotLookLikeAFastPath) {
  for (int64_t ms = 0; ms < 100; ++ms) Send(At(ms));
  Ack(0, 0, At(50));
  // The other 99 arrive as one compressed ACK: sending them took 99 ms.
  const RateSample sample = Ack(1, 99, At(150));
  ASSERT_TRUE(sample.valid);
  EXPECT_LE(sample.delivery_rate.mbps(), 10.1);
}

TEST_F(DeliveryRateTest, ABurstOfSendingDoesNotLookLikeAFastPath) {
  for (int i = 0; i < 100; ++i) Send(At(0));
  RateSample sample;
  for (size_t i = 0; i < 100; ++i) sample = Ack(i, i, At(50 + static_cast<int64_t>(i)));
  ASSERT_TRUE(sample.valid);
  EXPECT_LE(sample.delivery_rate.mbps(), 10.1);
}

TEST_F(DeliveryRateTest, LossIsCountedOverTheSampleInterval) {
  for (int64_t ms = 0; ms < 10; ++ms) Send(At(ms));
  sampler_.OnPacketLost(packets_[3]);
  sampler_.OnPacketLost(packets_[4]);
  const RateSample sample = Ack(9, 9, At(60));
  EXPECT_EQ(sample.lost, kBytes * int64_t{2});
  EXPECT_EQ(sampler_.lost(), kBytes * int64_t{2});
  EXPECT_EQ(sample.tx_in_flight, kBytes * int64_t{10});
}

TEST_F(DeliveryRateTest, ShorterThanARoundTripIsNoSample) {
  Send(At(0));
  const RateSample sample = Ack(0, 0, At(20));
  EXPECT_FALSE(sample.valid);
  EXPECT_TRUE(sample.delivery_rate.IsZero());
  EXPECT_FALSE(sampler_.TakeSample(kRtt, At(21)).valid);  // nothing acknowledged since
}

TEST_F(DeliveryRateTest, AnApplicationPauseLimitsTheNextFlight) {
  Send(At(0));
  Send(At(0));
  sampler_.OnAppLimited(in_flight_);
  EXPECT_TRUE(sampler_.is_app_limited());
  Send(At(30));
  Ack(0, 1, At(50));
  EXPECT_TRUE(Ack(2, 2, At(80)).app_limited);
  EXPECT_FALSE(sampler_.is_app_limited());
  Send(At(81));
  EXPECT_FALSE(Ack(3, 3, At(131)).app_limited);
}

TEST_F(DeliveryRateTest, AnIdlePeriodIsNotPartOfTheNextSample) {
  Send(At(0));
  Ack(0, 0, At(50));
  for (int64_t ms = 0; ms < 50; ++ms) Send(At(5000 + ms));
  const RateSample sample = Ack(1, 50, At(5099));
  ASSERT_TRUE(sample.valid);
  EXPECT_EQ(sample.interval, milliseconds(99));
}

TEST_F(DeliveryRateTest, ARoundShorterThanThePathIsMeasuredByItsTrain) {
  // 200 packets in 50 ms (40 Mbit/s); the bottleneck spreads them over 100 ms (20 Mbit/s), ACKs of 4 packets
  // each.
  for (int64_t i = 0; i < 200; ++i) Send(At(0) + microseconds(250 * i));
  sampler_.OnAppLimited(in_flight_);
  RateSample sample;
  for (size_t i = 0; i + 4 <= 100; i += 4) {
    sample = Ack(i, i + 3, At(50) + microseconds(500 * static_cast<int64_t>(i + 3)));
  }
  EXPECT_NEAR(sample.train_rate.mbps(), 20.0, 0.1);
  EXPECT_LT(sample.delivery_rate.mbps(), 11.0);  // the draft's interval contains the round trip
}

TEST_F(DeliveryRateTest, ATrainIsNeverFasterThanItWasSent) {
  for (int64_t i = 0; i < 40; ++i) Send(At(i));
  for (int64_t i = 40; i < 100; ++i) Send(At(i));
  Ack(0, 0, At(100));
  const RateSample sample = Ack(1, 99, At(108));  // ACKs compressed
  EXPECT_NEAR(sample.train_rate.mbps(), 10.0, 0.1);
}

TEST_F(DeliveryRateTest, APauseOfTheApplicationBreaksATrain) {
  for (int64_t i = 0; i < 60; ++i) Send(At(0) + microseconds(100 * i));
  sampler_.OnAppLimited(in_flight_);
  for (int64_t i = 0; i < 60; ++i) Send(At(40) + microseconds(100 * i));
  Ack(0, 0, At(50));
  EXPECT_TRUE(Ack(1, 119, At(96)).train_rate.IsZero());  // would else include the pause
}

TEST_F(DeliveryRateTest, AFewPacketsAreNoTrain) {
  for (int64_t i = 0; i < 30; ++i) Send(At(0) + microseconds(100 * i));
  Ack(0, 0, At(50));
  EXPECT_TRUE(Ack(1, 29, At(70)).train_rate.IsZero());
}

TEST_F(DeliveryRateTest, AcksOnTheirOwnDoNotCount) {
  SentPacket p;
  p.number = 7;
  p.sent_time = At(0);
  p.bytes = kBytes;
  sampler_.OnPacketAcked(p, At(10));
  EXPECT_EQ(sampler_.delivered(), ByteCount(0));
  EXPECT_FALSE(sampler_.TakeSample(kRtt, At(10)).valid);
}

// A receiver that lies in its ACKs, to be sent more, and leaves something in flight; what is sent is a packet
// per millisecond, 10 Mbit/s. When it holds packets back until they are declared lost, and then names them,
// or lets nothing be in flight, samples may be above that.
class LyingReceiverTest : public DeliveryRateTest {
 protected:
  // Each packet is acknowledged once, in whatever order; a sample's rate is never above the one of sending.
  void Acknowledge(std::vector<size_t> numbers, Instant when) {
    for (const size_t n : numbers) {
      sampler_.OnPacketAcked(packets_[n], when);
      in_flight_ -= kBytes;
    }
    const RateSample sample = sampler_.TakeSample(min_rtt_, when);
    ++samples_;
    if (when < At(200)) return;  // a flow's first flight is a packet more than its time
    ASSERT_LE(sample.delivery_rate.mbps(), 10.01) << "sample " << samples_;
    ASSERT_LE(sample.train_rate.mbps(), 10.01) << "sample " << samples_;
  }
  static Instant After(Instant t) { return t + microseconds(100); }

  Duration min_rtt_ = microseconds(100);
  int samples_ = 0;
};

TEST_F(LyingReceiverTest, ThatAcknowledgesInBunches) {
  std::vector<size_t> withheld;
  for (int64_t ms = 0; ms < 3000; ++ms) {
    Send(At(ms));
    if (ms > 0) withheld.push_back(static_cast<size_t>(ms - 1));
    if (ms < 50 || ms % 40 > 1) continue;  // twice in a row: much, then the next one alone
    Acknowledge(std::exchange(withheld, {}), After(At(ms)));
    if (HasFatalFailure()) return;
  }
}

TEST_F(LyingReceiverTest, ThatNamesAnOldPacketOfATrain) {
  for (int64_t ms = 0; ms < 300; ++ms) Send(At(ms));
  Acknowledge({100}, At(300));
  Acknowledge({5}, At(310));  // older than the train's first ACK
  Acknowledge({299}, At(320));
}

TEST_F(LyingReceiverTest, ThatAcknowledgesWhatIsOnItsWay) {
  Send(At(0));
  Send(At(1));
  for (int64_t ms = 2; ms < 3000; ++ms) {
    Send(At(ms));
    Acknowledge({static_cast<size_t>(ms - 2)}, After(At(ms)));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace longhaul::transport
