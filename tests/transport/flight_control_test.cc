// What one connection may have in flight: which limiter holds it back, what a probe timeout lets go, what a
// new path forgets.
#include "transport/core/connection/flight_control.h"

#include <gtest/gtest.h>

#include "transport/core/connection/connection.h"

namespace longhaul::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kDatagram = 1452;

class FlightControlTest : public testing::Test {
 protected:
  FlightControlTest() { flight_.SetReceiveWindow(1 << 20); }

  wire::PacketNumber Send(bool mtu_probe = false) {
    SentPacket p;
    p.number = flight_.next_number();
    p.bytes = ByteCount(kDatagram);
    p.ack_eliciting = p.in_flight = true;
    p.mtu_probe = mtu_probe;
    const wire::PacketNumber number = p.number;
    flight_.OnPacketSent(std::move(p), now_);
    return number;
  }
  // Sends until something holds it back.
  int SendAll() {
    int sent = 0;
    for (flight_.OnPoll(); flight_.MaySend(now_, kDatagram, true); ++sent) Send();
    return sent;
  }
  LossDetection::Outcome Acknowledge(wire::PacketNumber first, wire::PacketNumber last, uint64_t ce = 0) {
    wire::AckFrame ack;
    ack.ranges = {{first, last}};
    Result<LossDetection::Outcome> outcome = flight_.OnAckReceived(ack, now_);
    EXPECT_TRUE(outcome.ok());
    flight_.TakeFates(now_, *outcome, kDatagram);
    flight_.Conclude(now_, *outcome, ce, ack.host_drops);
    return std::move(outcome).value();
  }
  ConnectionStats Stats() const {
    ConnectionStats stats;
    flight_.AddTo(&stats, now_);
    return stats;
  }
  Duration Limited(RateLimiter limiter) const { return Stats().limited[static_cast<size_t>(limiter)]; }

  Instant now_ = Instant::FromNanoseconds(1'000'000'000);
  FlightControl flight_{now_, RateOptions(), Random(1)};
};

TEST_F(FlightControlTest, TimeGoesToTheLimiterFoundLast) {
  EXPECT_FALSE(flight_.MaySend(now_, kDatagram, false));
  now_ += milliseconds(3);
  EXPECT_EQ(Limited(RateLimiter::kApp), milliseconds(3));
  EXPECT_GT(SendAll(), 0);
  EXPECT_GT(flight_.NextPacing(now_), now_);  // the pacer holds the next one back
  EXPECT_FALSE(flight_.NextPacing(now_).IsInfinite());
  now_ += milliseconds(1);
  EXPECT_EQ(Limited(RateLimiter::kPacing), milliseconds(1));
  EXPECT_EQ(Limited(RateLimiter::kApp), milliseconds(3));
}

TEST_F(FlightControlTest, AReceiveWindowBelowOneDatagramLetsOneDatagramGo) {
  flight_.SetReceiveWindow(1);
  EXPECT_EQ(SendAll(), 1);
  EXPECT_TRUE(flight_.NextPacing(now_).IsInfinite());  // no timer helps
  now_ += milliseconds(2);
  EXPECT_EQ(Limited(RateLimiter::kReceiveWindow), milliseconds(2));
}

TEST_F(FlightControlTest, TheCongestionWindowHoldsBackWhatThePacerWouldLetGo) {
  for (int i = 0; i < 100'000 && flight_.WindowAllows(kDatagram); ++i) {
    now_ += milliseconds(1);
    flight_.SetReceiveWindow(UINT64_MAX / 2);
    Send();
  }
  now_ += milliseconds(10);
  EXPECT_FALSE(flight_.MaySend(now_, kDatagram, true));
  const Duration before = Limited(RateLimiter::kCwnd);
  now_ += milliseconds(5);
  EXPECT_EQ(Limited(RateLimiter::kCwnd) - before, milliseconds(5));
}

TEST_F(FlightControlTest, AProbeTimeoutAsksForTwoProbesTheSecondSmallFromTheSecondTimeoutOn) {
  Send();
  for (int timeout = 1; timeout <= 2; ++timeout) {
    now_ = flight_.LossDeadline();
    const LossDetection::Outcome outcome = flight_.OnTimeout(now_);
    ASSERT_TRUE(outcome.send_probes);
    flight_.TakeFates(now_, outcome, kDatagram);
    EXPECT_TRUE(flight_.Conclude(now_, outcome, 0, std::nullopt));
    EXPECT_EQ(flight_.probes_due(), FlightControl::kProbes);
    EXPECT_FALSE(flight_.NextProbeIsSmall());
    flight_.OnProbeBuilt();
    EXPECT_EQ(flight_.NextProbeIsSmall(), timeout == 2);
    flight_.OnProbeBuilt();
    Send();
  }
  EXPECT_EQ(Stats().pto_fired, 2u);
}

TEST_F(FlightControlTest, AnAckWithoutNewsChangesNothing) {
  const wire::PacketNumber first = Send();
  now_ += milliseconds(20);
  Acknowledge(first, first);
  wire::AckFrame again;
  again.ranges = {{first, first}};
  const Result<LossDetection::Outcome> outcome = flight_.OnAckReceived(again, now_);
  ASSERT_TRUE(outcome.ok());
  flight_.TakeFates(now_, *outcome, kDatagram);
  EXPECT_FALSE(flight_.Conclude(now_, *outcome, 0, 0));
}

TEST_F(FlightControlTest, LossesOfTheOldPathAreNoCongestionOfTheNewOne) {
  const wire::PacketNumber lost = Send();
  for (int i = 0; i < 10; ++i) Send();
  now_ += milliseconds(50);
  flight_.OnNewPath(now_, 1);
  EXPECT_EQ(Stats().smoothed_rtt, Duration(0));
  const wire::PacketNumber first = Send();
  now_ += milliseconds(30);
  const LossDetection::Outcome outcome = Acknowledge(lost + 1, first);
  ASSERT_EQ(outcome.lost.size(), 1u);
  EXPECT_EQ(Stats().packets_lost, 1u);
  EXPECT_EQ(Stats().rate.loss, 0);
}

TEST_F(FlightControlTest, TheNewestGrantBoundsThePaceAlsoOnTheNextPath) {
  wire::GrantFrame grant;
  grant.receive_window_bytes = 1 << 20;
  grant.rate_bytes_per_second = 125'000;
  flight_.OnGrant(grant, 7, now_);
  EXPECT_LE(Stats().rate.pacing_rate, Bandwidth::Mbps(1));
  grant.rate_bytes_per_second = 0;  // no bound, but overtaken
  flight_.OnGrant(grant, 6, now_);
  EXPECT_LE(Stats().rate.pacing_rate, Bandwidth::Mbps(1));
  flight_.OnNewPath(now_, 1);
  EXPECT_LE(Stats().rate.pacing_rate, Bandwidth::Mbps(1));
  flight_.OnGrant(grant, 8, now_);
  EXPECT_GT(Stats().rate.pacing_rate, Bandwidth::Mbps(1));
}

TEST_F(FlightControlTest, NumbersAreLeftOutOnceConnected) {
  const auto send_some = [this](int packets) {
    for (int i = 0; i < packets; ++i) {
      const wire::PacketNumber number = flight_.next_number();
      Send();
      now_ += milliseconds(1);
      Acknowledge(number, number);
    }
  };
  send_some(5000);
  EXPECT_EQ(flight_.next_number(), 5000u);
  flight_.OnConnected(kDatagram, now_, 1);
  send_some(51'200);
  const uint64_t skipped = Stats().numbers_skipped;
  EXPECT_EQ(flight_.next_number(), 56'200 + skipped);
  EXPECT_NEAR(static_cast<double>(skipped), 100, 40);  // four standard deviations
  EXPECT_EQ(Stats().packets_lost, 0u);
  EXPECT_EQ(Stats().loss, 0);
}

TEST_F(FlightControlTest, ThePeersPacketsAreReckonedWithoutTheUsualShareOfGaps) {
  for (wire::PacketNumber number : {0u, 511u, 512u, 51'299u}) {
    flight_.acks().OnPacketReceived(number, true, false, now_);
    EXPECT_EQ(Stats().packets_expected, number + 1 - (number + 1) / 513);
  }
  EXPECT_EQ(Stats().packets_expected, 51'200u);
}

TEST_F(FlightControlTest, ALostMtuProbeIsNoLoss) {
  const wire::PacketNumber probe = Send(true);
  for (int i = 0; i < 5; ++i) Send();
  now_ += milliseconds(40);
  const LossDetection::Outcome outcome = Acknowledge(probe + 1, probe + 5);
  ASSERT_EQ(outcome.lost.size(), 1u);
  EXPECT_EQ(Stats().packets_lost, 0u);
  EXPECT_EQ(Stats().loss, 0);
}

TEST_F(FlightControlTest, HostDropsAreTheLargestTotalReported) {
  const wire::PacketNumber first = Send();
  Send();
  for (const uint64_t drops : {7u, 5u}) {
    wire::AckFrame ack;
    ack.ranges = {{first, first}};
    ack.host_drops = drops;
    const Result<LossDetection::Outcome> outcome = flight_.OnAckReceived(ack, now_ + milliseconds(1));
    flight_.TakeFates(now_, *outcome, kDatagram);
    flight_.Conclude(now_, *outcome, 0, ack.host_drops);
  }
  EXPECT_EQ(Stats().host_drops, 7u);
}

}  // namespace
}  // namespace longhaul::transport
