#include "transport/core/rate/cubic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/sim/rate/rate_sim.h"

namespace longhaul::transport {
namespace {

using sim::FlowOptions;
using sim::kDatagram;
using sim::LinkOptions;
using sim::Simulation;
using std::chrono::milliseconds;
using std::chrono::seconds;

RateOptions CubicOptions() {
  RateOptions options;
  options.control = RateControl::kCubic;
  return options;
}

// --- The controller alone ---

LostPacket LostDatagram(Instant sent) {
  LostPacket packet;
  packet.bytes = kDatagram;
  packet.sent_time = sent;
  return packet;
}

class CubicTest : public testing::Test {
 protected:
  double cwnd() const { return cubic_.cwnd() / kDatagram; }
  std::string_view state() const { return cubic_.Snapshot().state; }

  void FillWindow() { cubic_.OnPacketSent(now_, kDatagram, cubic_.cwnd(), false); }

  // One ACK for packets that left `rtt` ago.
  CongestionEvent Event(double acked, Duration rtt) {
    CongestionEvent e;
    e.now = now_;
    e.acked = kDatagram * acked;
    e.sample.prior_delivered = delivered_of_round_;
    e.delivered = delivered_ += e.acked;
    e.bytes_in_flight = cubic_.cwnd();
    e.latest_rtt = e.smoothed_rtt = e.min_rtt = rtt;
    return e;
  }

  // A full window is sent and acknowledged in `acks` ACKs, which are spread over the round trip.
  void Round(Duration rtt = milliseconds(50), int acks = 20) {
    const double packets = cwnd();
    delivered_of_round_ = delivered_;
    for (int i = 0; i < acks; ++i) {
      FillWindow();
      now_ += rtt / acks;
      cubic_.OnCongestionEvent(Event(packets / acks, rtt));
    }
  }

  void Lose(Instant sent, double acked = 1, int packets = 1) {
    CongestionEvent e = Event(acked, milliseconds(50));
    e.latest_rtt = Duration(0);
    e.lost = kDatagram * int64_t{packets};
    const std::vector<LostPacket> lost(static_cast<size_t>(packets), LostDatagram(sent));
    e.lost_packets = lost;
    cubic_.OnCongestionEvent(e);
  }
  void LoseOne() { Lose(now_ - Duration(1)); }

  void GrowTo(double datagrams) {
    while (cwnd() < datagrams) Round();
  }

  RateOptions options_ = CubicOptions();
  Cubic cubic_{options_};
  Instant now_ = Instant() + seconds(1);
  ByteCount delivered_;
  ByteCount delivered_of_round_;
};

TEST_F(CubicTest, StartsWithTenDatagramsAtTheInitialRate) {
  EXPECT_EQ(cwnd(), 10);
  EXPECT_EQ(cubic_.pacing_rate(), options_.initial);
  EXPECT_EQ(state(), "slow_start");
  EXPECT_EQ(cubic_.Snapshot().name, "cubic");
}

TEST_F(CubicTest, SlowStartDoublesPerRoundTripAndPacesAtTwice) {
  Round();
  EXPECT_NEAR(cwnd(), 20, 0.1);
  Round();
  EXPECT_NEAR(cwnd(), 40, 0.1);
  EXPECT_NEAR(cubic_.pacing_rate().mbps(), 2 * 40 * 1452 * 8 / 0.050 / 1e6, 0.2);
}

TEST_F(CubicTest, AGrowingRoundTripEndsSlowStartWithoutLoss) {
  GrowTo(300);
  Round(milliseconds(60));  // conservative from the eighth sample on
  const double slowed = cwnd();
  Round(milliseconds(60));
  EXPECT_NEAR(cwnd(), slowed * 1.25, 0.1);
  for (int i = 0; i < HyStart::kCssRounds; ++i) Round(milliseconds(60));
  EXPECT_EQ(state(), "congestion_avoidance");
  EXPECT_NEAR(cubic_.pacing_rate() / cubic_.Snapshot().bandwidth, Cubic::kPacing, 1e-6);
  // RFC 9438 §4.10: K = 0, the plateau is here, so it goes up at once: 0.4 t^3.
  const double exit = cwnd();
  const Instant from = now_;
  while (now_ < from + seconds(15)) Round(milliseconds(60));
  EXPECT_NEAR(cwnd(), exit + 0.4 * 15 * 15 * 15, 0.03 * cwnd());
}

TEST_F(CubicTest, ALossLeavesSevenTenths) {
  GrowTo(100);
  const double before = cwnd();
  LoseOne();
  EXPECT_NEAR(cwnd(), 0.7 * before, 0.1);
  EXPECT_EQ(state(), "recovery");
  Round();  // what is acknowledged now left before the reduction
  EXPECT_EQ(state(), "recovery");
  EXPECT_NEAR(cwnd(), 0.7 * before, 0.1);
  Round();
  EXPECT_EQ(state(), "congestion_avoidance");
}

TEST_F(CubicTest, TheWindowFollowsTheCurveOfTheRfc) {
  GrowTo(1000);
  const double w_max = cwnd();
  LoseOne();
  const double start = cwnd();
  while (state() == "recovery") Round();
  const Instant epoch = now_;
  const double k = std::cbrt((w_max - start) / Cubic::kC);
  ASSERT_GT(k, 8);  // seconds, and 160 round trips
  std::vector<double> seen;
  for (double t : {1.0, 3.0, 6.0, k, 12.0, 15.0}) {
    while (now_ < epoch + Duration(static_cast<int64_t>(t * 1e9))) Round();
    const double at = std::chrono::duration<double>(now_ - epoch).count();
    const double formula = Cubic::kC * std::pow(at - k, 3) + w_max;
    EXPECT_NEAR(cwnd(), formula, 0.01 * formula) << "t = " << at << " s";
    seen.push_back(cwnd());
  }
  EXPECT_NEAR(seen[3], w_max, 0.002 * w_max);  // the plateau
}

TEST_F(CubicTest, ASmallWindowIsRenoFriendly) {
  GrowTo(40);
  const double before = cwnd();
  LoseOne();
  while (state() == "recovery") Round(milliseconds(10));
  const double start = cwnd();
  // The cubic would need 3.1 s; additive increase is faster at 10 ms: 0.53 datagrams per round trip.
  for (int i = 0; i < 10; ++i) Round(milliseconds(10));
  EXPECT_NEAR(cwnd(), start + 10 * Cubic::kAlpha, 0.5);
  // Back at the window before the reduction it is one per round trip.
  while (cwnd() < before + 1) Round(milliseconds(10));
  const double above = cwnd();
  for (int i = 0; i < 10; ++i) Round(milliseconds(10));
  EXPECT_NEAR(cwnd(), above + 10, 0.5);
}

TEST_F(CubicTest, FastConvergenceLowersThePlateauOfAShrinkingFlow) {
  GrowTo(1000);
  LoseOne();
  Round();
  const double second = cwnd();
  LoseOne();  // below the plateau of the first
  const double start = cwnd();
  EXPECT_NEAR(start, 0.7 * second, 1);
  while (state() == "recovery") Round();
  const double plateau = second * (1 + Cubic::kBeta) / 2;
  const double k = std::cbrt((plateau - start) / Cubic::kC);
  const Instant epoch = now_;
  while (now_ < epoch + Duration(static_cast<int64_t>(k * 1e9))) Round();
  EXPECT_NEAR(cwnd(), plateau, 0.01 * plateau);
}

TEST_F(CubicTest, LossesOfOneRoundTripReduceOnce) {
  GrowTo(100);
  const Instant flight = now_;
  now_ += milliseconds(10);
  Lose(flight, 1, 3);
  const double reduced = cwnd();
  now_ += milliseconds(10);
  Lose(flight + milliseconds(5), 1, 20);  // sent before the reduction
  EXPECT_EQ(cwnd(), reduced);
  now_ += milliseconds(40);
  Lose(flight + milliseconds(15));  // sent after it
  EXPECT_NEAR(cwnd(), 0.7 * reduced, 0.1);
}

TEST_F(CubicTest, AMarkIsACongestionEventOncePerRoundTrip) {
  GrowTo(100);
  const double before = cwnd();
  CongestionEvent e = Event(1, milliseconds(50));
  e.ecn_ce = 7;
  cubic_.OnCongestionEvent(e);
  EXPECT_NEAR(cwnd(), 0.7 * before, 0.1);
  now_ += milliseconds(20);
  e = Event(1, milliseconds(50));  // of a packet that left before the reduction
  e.ecn_ce = 5;
  cubic_.OnCongestionEvent(e);
  EXPECT_NEAR(cwnd(), 0.7 * before, 0.1);
  now_ += milliseconds(40);
  e = Event(1, milliseconds(50));
  e.ecn_ce = 1;
  cubic_.OnCongestionEvent(e);
  EXPECT_NEAR(cwnd(), 0.49 * before, 0.1);
}

TEST_F(CubicTest, WhatThePeersHostDroppedIsNotTheNetworksLoss) {
  GrowTo(100);
  const double before = cwnd();
  CongestionEvent report = Event(1, milliseconds(50));
  report.host_drops = 5;
  cubic_.OnCongestionEvent(report);
  const double after_report = cwnd();
  Lose(now_ - Duration(1), 1, 5);
  EXPECT_GE(cwnd(), after_report);
  EXPECT_EQ(state(), "slow_start");
  LoseOne();  // the sixth is the network's
  EXPECT_NEAR(cwnd(), 0.7 * before, 3);
}

TEST_F(CubicTest, AnExcuseByHostDropsExpires) {
  GrowTo(100);
  CongestionEvent report = Event(1, milliseconds(50));
  report.host_drops = 5;
  cubic_.OnCongestionEvent(report);
  for (int i = 0; i < 3; ++i) Round();
  const double before = cwnd();
  LoseOne();
  EXPECT_NEAR(cwnd(), 0.7 * before, 1);
}

TEST_F(CubicTest, ASpuriousReductionIsUndoneWhenAllOfItWas) {
  GrowTo(1000);
  LoseOne();
  while (state() == "recovery") Round();
  for (int i = 0; i < 40; ++i) Round();
  const double before = cwnd();
  Lose(now_ - Duration(1), 1, 2);
  const double reduced = cwnd();
  ASSERT_LT(reduced, 0.71 * before);
  now_ += milliseconds(5);
  CongestionEvent e = Event(1, Duration(0));
  e.spurious = kDatagram;
  cubic_.OnCongestionEvent(e);
  EXPECT_EQ(cwnd(), reduced);  // half of it was real, as far as is known
  now_ += milliseconds(5);
  e = Event(1, Duration(0));
  e.spurious = kDatagram;
  cubic_.OnCongestionEvent(e);
  EXPECT_NEAR(cwnd(), before, 1);
  // The curve goes on where it was, without a jump.
  const double restored = cwnd();
  Round();
  EXPECT_GE(cwnd(), restored);
  EXPECT_LE(cwnd(), restored * 1.03);
}

TEST_F(CubicTest, AWindowThatIsNotUsedDoesNotGrow) {
  GrowTo(100);
  LoseOne();
  while (state() == "recovery") Round();
  // Two round trips later nothing but a tenth of the window is in flight.
  for (int i = 0; i < 3; ++i) {
    delivered_of_round_ = delivered_;
    now_ += milliseconds(50);
    CongestionEvent e = Event(8, milliseconds(50));
    e.bytes_in_flight = kDatagram * int64_t{8};
    cubic_.OnCongestionEvent(e);
  }
  const double before = cwnd();
  for (int i = 0; i < 200; ++i) {
    delivered_of_round_ = delivered_;
    now_ += milliseconds(50);
    cubic_.OnPacketSent(now_, kDatagram, kDatagram * int64_t{8}, true);
    CongestionEvent e = Event(8, milliseconds(50));
    e.bytes_in_flight = kDatagram * int64_t{8};
    cubic_.OnCongestionEvent(e);
  }
  EXPECT_EQ(cwnd(), before);
  // Ten seconds later the curve has not moved on.
  Round();
  Round();
  EXPECT_LE(cwnd(), before * 1.1);
}

TEST_F(CubicTest, IdlingDoesNotMakeTheCurveJump) {
  GrowTo(100);
  LoseOne();
  while (state() == "recovery") Round();
  for (int i = 0; i < 5; ++i) Round();
  const double before = cwnd();
  now_ += seconds(60);
  cubic_.OnPacketSent(now_, kDatagram, kDatagram, true);  // into an idle path
  Round();
  Round();
  EXPECT_GE(cwnd(), before);
  EXPECT_LE(cwnd(), before * 1.1);  // 0.4 (60 - K)^3 would be 69,000 datagrams
}

TEST_F(CubicTest, OneProbeTimeoutChangesNothing) {
  GrowTo(100);
  const double before = cwnd();
  CongestionEvent timeout;
  timeout.now = now_ += milliseconds(200);
  timeout.timeout = true;
  cubic_.OnCongestionEvent(timeout);
  EXPECT_EQ(cwnd(), before);
}

TEST_F(CubicTest, PersistentCongestionStartsAnewAndStopsAtSevenTenths) {
  GrowTo(100);
  const double before = cwnd();
  const Instant flight = now_;
  Instant first_probe;
  for (int i = 0; i < 2; ++i) {
    CongestionEvent timeout;
    timeout.now = now_ += milliseconds(200) * (i + 1);
    timeout.timeout = true;
    cubic_.OnCongestionEvent(timeout);
    if (i == 0) first_probe = now_;
  }
  EXPECT_EQ(cwnd(), before);  // it may yet turn out that only ACKs were lost
  now_ += milliseconds(50);
  CongestionEvent e = Event(1, milliseconds(50));
  const std::vector<LostPacket> lost = {LostDatagram(flight), LostDatagram(first_probe)};
  e.lost = kDatagram * int64_t{2};
  e.lost_packets = lost;
  cubic_.OnCongestionEvent(e);
  EXPECT_EQ(cwnd(), Cubic::kMinDatagrams + 1);  // and the one that arrived
  EXPECT_EQ(state(), "slow_start");
  while (state() == "slow_start") Round();
  EXPECT_NEAR(cwnd(), 0.7 * before, 1);
  EXPECT_EQ(state(), "congestion_avoidance");
}

TEST_F(CubicTest, SilenceWhoseFlightArrivedIsNotPersistentCongestion) {
  GrowTo(100);
  const double before = cwnd();
  for (int i = 0; i < 3; ++i) {
    CongestionEvent timeout;
    timeout.now = now_ += milliseconds(200);
    timeout.timeout = true;
    cubic_.OnCongestionEvent(timeout);
  }
  Lose(now_ - seconds(1), 99, 1);  // one loss among 99 arrivals
  EXPECT_NEAR(cwnd(), 0.7 * before, 0.1);
}

TEST_F(CubicTest, NeverLessThanTwoDatagrams) {
  for (int i = 0; i < 50; ++i) {
    now_ += milliseconds(100);
    LoseOne();
  }
  EXPECT_EQ(cubic_.cwnd(), kDatagram * Cubic::kMinDatagrams);
}

TEST_F(CubicTest, GrantCapAndFloorBoundTheRateAndSayWho) {
  options_.cap = Bandwidth::Mbps(20);
  options_.floor = Bandwidth::Mbps(2);
  cubic_ = Cubic(options_);
  EXPECT_EQ(cubic_.rate_bound(), RateLimiter::kPacing);
  GrowTo(200);
  EXPECT_EQ(cubic_.pacing_rate(), options_.cap);
  EXPECT_EQ(cubic_.rate_bound(), RateLimiter::kCap);
  cubic_.SetGrant(Bandwidth::Mbps(7));
  EXPECT_EQ(cubic_.pacing_rate(), Bandwidth::Mbps(7));
  EXPECT_EQ(cubic_.rate_bound(), RateLimiter::kGrant);
  cubic_.SetGrant(Bandwidth::BitsPerSecond(1));
  EXPECT_EQ(cubic_.pacing_rate(), options_.floor);
  cubic_.SetGrant(Bandwidth::Zero());
  EXPECT_EQ(cubic_.pacing_rate(), options_.cap);
}

TEST(CubicFactory, MakesItByName) {
  EXPECT_EQ(FromName<RateControl>("cubic"), RateControl::kCubic);
  EXPECT_EQ(MakeRateController(CubicOptions(), Random(1))->Snapshot().name, "cubic");
}

// --- On a simulated bottleneck, 100 Mbit/s and 20 ms unless told otherwise ---

FlowOptions CubicFlow(Duration start = Duration(0)) {
  FlowOptions flow;
  flow.start = Instant() + start;
  flow.rate = CubicOptions();
  return flow;
}

double Share(const LinkOptions& link) {
  Simulation simulation(link);
  simulation.AddFlow(CubicFlow());
  simulation.RunUntil(Instant() + seconds(5));
  simulation.ResetStats();
  simulation.RunUntil(Instant() + seconds(25));
  EXPECT_LE(simulation.worst_overshoot(), kDatagram * int64_t{3});
  return Bandwidth::FromBytesAndTime(simulation.stats(0).arrived, seconds(20)) / link.rate;
}

TEST(CubicOnALink, FillsACleanPath) {
  LinkOptions link;
  EXPECT_GE(Share(link), 0.95);
  link.rtt = milliseconds(100);
  EXPECT_GE(Share(link), 0.90);
  link.buffer_bdp = 0.25;
  EXPECT_GE(Share(link), 0.75);
}

TEST(CubicOnALink, HystartLeavesSlowStartBeforeTheQueueOverflows) {
  LinkOptions link;
  link.rtt = milliseconds(100);
  link.buffer_bdp = 10;  // the conservative rounds still triple the window
  Simulation simulation(link);
  simulation.AddFlow(CubicFlow());
  simulation.RunUntil(Instant() + seconds(6));
  EXPECT_EQ(simulation.controller(0).Snapshot().state, "congestion_avoidance");
  EXPECT_EQ(simulation.stats(0).queue_drops.value(), 0);
  EXPECT_GE(simulation.controller(0).Snapshot().bandwidth.mbps(), 50);
}

TEST(CubicOnALink, RandomLossMakesItCollapse) {
  // 1.2 / sqrt(p) datagrams in flight (Reno-friendly region): 12 at 1 %, of the 172 that the path holds.
  for (uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    LinkOptions link{.loss = 0.01, .seed = seed};
    const double one_percent = Share(link);
    EXPECT_LE(one_percent, 0.15);
    EXPECT_GE(one_percent, 0.03);
    link.loss = 0.05;
    EXPECT_LE(Share(link), 0.6 * one_percent);
  }
}

TEST(CubicOnALink, TwoFlowsConverge) {
  for (uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    LinkOptions link;
    link.seed = seed;
    Simulation simulation(link);
    simulation.AddFlow(CubicFlow());
    simulation.AddFlow(CubicFlow(seconds(5)));  // the first has the path to itself
    simulation.RunUntil(Instant() + seconds(60));
    simulation.ResetStats();
    simulation.RunUntil(Instant() + seconds(120));
    const double first = Bandwidth::FromBytesAndTime(simulation.stats(0).arrived, seconds(60)).mbps();
    const double second = Bandwidth::FromBytesAndTime(simulation.stats(1).arrived, seconds(60)).mbps();
    EXPECT_GE(first + second, 95);
    EXPECT_GE(std::min(first, second), 30) << first << " and " << second << " Mbit/s";
  }
}

TEST(CubicOnALink, RoundsWithPausesDoNotOverflowTheQueue) {
  LinkOptions link;
  Simulation simulation(link);
  FlowOptions flow = CubicFlow();
  flow.round_packets = 300;
  flow.round_gap = seconds(5);
  simulation.AddFlow(flow);
  simulation.RunUntil(Instant() + seconds(200));
  const auto& rounds = simulation.stats(0).rounds;
  ASSERT_GE(rounds.size(), 30u);
  EXPECT_LE(rounds.back(), milliseconds(90));  // ideal: 20 + 35
  EXPECT_LE(simulation.stats(0).OwnLoss(), 0.02);
}

void Round(HyStart* hystart, Duration rtt, int samples = HyStart::kRttSamples) {
  hystart->OnRoundStart();
  for (int i = 0; i < samples; ++i) hystart->OnRttSample(rtt);
}

TEST(HyStart, SteadyRoundTripsLeaveSlowStartAlone) {
  HyStart hystart;
  for (int i = 0; i < 50; ++i) Round(&hystart, milliseconds(50));
  EXPECT_FALSE(hystart.conservative());
  EXPECT_FALSE(hystart.done());
  EXPECT_EQ(hystart.growth(), 1.0);
}

TEST(HyStart, AnEighthMoreSlowsTheGrowthAndFiveRoundsEndIt) {
  HyStart hystart;
  Round(&hystart, milliseconds(80));
  Round(&hystart, milliseconds(89));
  EXPECT_FALSE(hystart.conservative());  // below the eighth
  Round(&hystart, milliseconds(101));    // above 89 + 11.1
  EXPECT_TRUE(hystart.conservative());
  EXPECT_EQ(hystart.growth(), 0.25);
  for (int i = 0; i < HyStart::kCssRounds; ++i) {
    EXPECT_FALSE(hystart.done());
    Round(&hystart, milliseconds(105));
  }
  EXPECT_TRUE(hystart.done());
}

TEST(HyStart, TheThresholdIsAtLeastFourAndAtMostSixteenMilliseconds) {
  HyStart near;
  Round(&near, milliseconds(2));
  Round(&near, milliseconds(5));
  EXPECT_FALSE(near.conservative());
  Round(&near, milliseconds(9));
  EXPECT_TRUE(near.conservative());

  HyStart far;
  Round(&far, milliseconds(400));
  Round(&far, milliseconds(415));
  EXPECT_FALSE(far.conservative());
  Round(&far, milliseconds(431));
  EXPECT_TRUE(far.conservative());
}

TEST(HyStart, FewSamplesProveNothing) {
  HyStart hystart;
  Round(&hystart, milliseconds(50));
  Round(&hystart, milliseconds(500), HyStart::kRttSamples - 1);
  EXPECT_FALSE(hystart.conservative());
}

TEST(HyStart, ARoundTripBelowTheBaselineResumesSlowStart) {
  HyStart hystart;
  Round(&hystart, milliseconds(50));
  Round(&hystart, milliseconds(60));
  ASSERT_TRUE(hystart.conservative());
  Round(&hystart, milliseconds(59));
  EXPECT_FALSE(hystart.conservative());
  for (int i = 0; i < 2 * HyStart::kCssRounds; ++i) Round(&hystart, milliseconds(59));
  EXPECT_FALSE(hystart.done());
}

}  // namespace
}  // namespace longhaul::transport
