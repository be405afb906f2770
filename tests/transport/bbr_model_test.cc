// The owners of the BBR model, each alone. What they do together is in bbr_draft_test.cc.
#include "transport/core/rate/bbr/bbr_model.h"

#include <gtest/gtest.h>

#include "transport/core/rate/path_loss.h"

namespace longhaul::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr ByteCount kDatagram{1452};
Bandwidth Mbps(double mbps) { return Bandwidth::Mbps(mbps); }
Instant At(Duration time) { return Instant() + time; }

TEST(MaxBwFilter, RemembersTwoCycles) {
  MaxBwFilter filter;
  filter.Update(Mbps(80), Mbps(80), false);
  filter.Update(Mbps(50), Mbps(50), false);
  EXPECT_EQ(filter.max_bw(), Mbps(80));
  filter.Advance();
  filter.Update(Mbps(60), Mbps(60), false);
  EXPECT_EQ(filter.max_bw(), Mbps(80));
  filter.Advance();
  EXPECT_EQ(filter.max_bw(), Mbps(60));
  filter.Advance();  // a cycle without a sample does not end
  EXPECT_EQ(filter.max_bw(), Mbps(60));
}

TEST(MaxBwFilter, LimitedSamplesOnlyRaise) {
  MaxBwFilter filter;
  filter.Update(Mbps(40), Mbps(40), true);
  filter.Advance();
  filter.Update(Mbps(30), Mbps(30), true);
  filter.Advance();
  EXPECT_EQ(filter.max_bw(), Mbps(40));
  filter.Update(Bandwidth::Zero(), Bandwidth::Zero(), false);
  filter.Update(Mbps(70), Mbps(70), true);
  EXPECT_EQ(filter.max_bw(), Mbps(70));
  filter.Replace(Mbps(10), Mbps(10));
  filter.Update(Mbps(9), Mbps(9), false);
  EXPECT_EQ(filter.max_bw(), Mbps(10));
}

TEST(MaxBwFilter, IsNeverAboveWhatWasDelivered) {
  MaxBwFilter filter;
  filter.SetExcused(0.2);
  filter.Update(Mbps(100), Mbps(80), false);
  EXPECT_EQ(filter.max_bw(), Mbps(100));
  filter.SetExcused(0);  // what was excused is taken back
  EXPECT_EQ(filter.max_bw(), Mbps(80));
  filter.SetExcused(0.5);  // and a sample cannot become more than it was
  EXPECT_EQ(filter.max_bw(), Mbps(100));
  EXPECT_EQ(filter.max_delivered(), Mbps(80));
}

TEST(MinRttFilter, ExpiresAfterTenSeconds) {
  MinRttFilter filter;
  EXPECT_FALSE(filter.known());
  filter.Update(At(seconds(1)), milliseconds(20), seconds(5), false);
  filter.Update(At(seconds(2)), milliseconds(30), seconds(5), false);
  EXPECT_EQ(filter.min_rtt(), milliseconds(20));
  EXPECT_FALSE(filter.probe_rtt_expired());
  filter.Update(At(milliseconds(6001)), milliseconds(30), seconds(5), false);
  EXPECT_TRUE(filter.probe_rtt_expired());
  EXPECT_EQ(filter.probe_rtt_min_delay(), milliseconds(30));
  EXPECT_EQ(filter.min_rtt(), milliseconds(20));
  filter.Update(At(milliseconds(11'002)), milliseconds(30), seconds(5), false);
  EXPECT_EQ(filter.min_rtt(), milliseconds(30));
}

TEST(MinRttFilter, AMinimumMetAgainNeedsNoProbe) {
  MinRttFilter filter;
  filter.Update(At(seconds(1)), milliseconds(20), seconds(5), false);
  filter.Update(At(seconds(5)), milliseconds(21), seconds(5), true);
  filter.Update(At(seconds(9)), milliseconds(30), seconds(5), false);
  EXPECT_FALSE(filter.probe_rtt_expired());
  EXPECT_EQ(filter.probe_rtt_min_delay(), milliseconds(20));
  filter.Update(At(milliseconds(10'001)), Duration(0), seconds(5),
                false);  // no sample, but the time has passed
  EXPECT_TRUE(filter.probe_rtt_expired());
  filter.Refresh(At(seconds(11)));
  EXPECT_FALSE(filter.probe_rtt_expired());
  EXPECT_EQ(filter.probe_rtt_min_stamp(), At(seconds(11)));
}

TEST(AckAggregation, CountsWhatComesAheadOfTheBandwidth) {
  AckAggregation aggregation;
  const Bandwidth bw = Mbps(8);  // 1000 bytes a millisecond
  const ByteCount cwnd(1'000'000);
  for (int ms = 1; ms <= 20; ++ms) aggregation.Update(At(milliseconds(ms)), 1, bw, ByteCount(1000), cwnd, 10);
  EXPECT_LE(aggregation.extra_acked(), ByteCount(1000));
  aggregation.Update(At(milliseconds(50)), 2, bw, ByteCount(30'000), cwnd, 10);
  EXPECT_EQ(aggregation.extra_acked(), ByteCount(30'000));
  aggregation.Update(At(milliseconds(51)), 3, bw, ByteCount(900'000), cwnd, 10);
  EXPECT_EQ(aggregation.extra_acked(), bw * AckAggregation::kMaxTime);
  aggregation.Update(At(seconds(10)), 14, bw, ByteCount(1), cwnd, 10);
  EXPECT_EQ(aggregation.extra_acked(), ByteCount(1));  // ten round trips later
}

TEST(FullPipe, IsFullAfterThreeRoundsWithoutAQuarterMore) {
  FullPipe pipe;
  for (const double mbps : {10.0, 20.0, 26.0, 32.0, 32.4}) pipe.OnRound(Mbps(mbps));
  EXPECT_EQ(pipe.count(), 2);  // 32 and 32.4 against 26
  EXPECT_FALSE(pipe.reached());
  pipe.OnRound(Mbps(30));
  EXPECT_TRUE(pipe.now());
  EXPECT_TRUE(pipe.reached());
  pipe.Restart(Mbps(32));
  EXPECT_FALSE(pipe.now());
  EXPECT_TRUE(pipe.reached());
}

// One event: `acked` packets that were sent when `prior` were delivered.
BbrEvent Acked(int64_t acked, int64_t prior, int64_t delivered) {
  BbrEvent event;
  event.newly_acked = kDatagram * acked;
  event.rs.prior_delivered = kDatagram * prior;
  event.delivered = kDatagram * delivered;
  event.path_rtt = milliseconds(20);
  return event;
}

TEST(BbrRounds, EndWithTheFirstPacketSentInThem) {
  BbrRounds rounds;
  EXPECT_TRUE(rounds.Advance(Acked(1, 0, 1)));
  rounds.Count(Acked(1, 0, 1));
  EXPECT_FALSE(rounds.Advance(Acked(9, 0, 10)));
  rounds.CountLoss(kDatagram * int64_t{3}, kDatagram);
  for (const uint64_t number : {4, 5, 9}) rounds.CountLostPacket(number);
  rounds.Count(Acked(9, 0, 10));
  EXPECT_TRUE(rounds.Advance(Acked(1, 1, 11)));
  EXPECT_EQ(rounds.count(), 2u);
  EXPECT_EQ(rounds.last().acked, kDatagram * int64_t{10});
  EXPECT_EQ(rounds.last().lost, kDatagram * int64_t{4});
  EXPECT_EQ(rounds.last().marked, kDatagram);
  EXPECT_EQ(rounds.last().loss_events, 2);
  EXPECT_EQ(rounds.last().min_rtt, milliseconds(20));
  EXPECT_EQ(rounds.current().acked, ByteCount());
}

TEST(BbrRounds, HostDropsExcuseLossesThatComeBeforeOrAfter) {
  BbrRounds rounds;
  EXPECT_EQ(rounds.ExcuseHostDrops(ByteCount(), kDatagram * int64_t{2}), ByteCount());
  EXPECT_EQ(rounds.ExcuseHostDrops(kDatagram * int64_t{3}, ByteCount()), kDatagram);
  EXPECT_EQ(rounds.ExcuseHostDrops(kDatagram, ByteCount()), kDatagram);
}

TEST(BbrRounds, TheWindowLimitsUntilARoundPassesWithoutFillingIt) {
  BbrRounds rounds;
  rounds.OnPacketSent(kDatagram * int64_t{4}, kDatagram * int64_t{4});
  rounds.Advance(Acked(1, 0, 1));
  EXPECT_TRUE(rounds.cwnd_limited());
  rounds.OnPacketSent(kDatagram, kDatagram * int64_t{4});
  rounds.Advance(Acked(1, 1, 2));
  EXPECT_FALSE(rounds.cwnd_limited());
}

TEST(BbrBounds, ASpuriousLossBringsBackWhatWasSaved) {
  BbrBounds bounds;
  bounds.inflight_longterm = ByteCount(90'000);
  bounds.Save(7);
  bounds.InitLowerBounds(Mbps(50), ByteCount(60'000));
  EXPECT_EQ(bounds.bw_shortterm, Mbps(50));
  EXPECT_EQ(bounds.inflight_shortterm, ByteCount(60'000));
  bounds.inflight_longterm = ByteCount(40'000);
  bounds.Restore();
  EXPECT_EQ(bounds.bw_shortterm, Bandwidth::Max());
  EXPECT_EQ(bounds.inflight_shortterm, BbrBounds::kInfinite);
  EXPECT_EQ(bounds.inflight_longterm, ByteCount(90'000));
}

TEST(ProbeBwCycle, TheSlopeDoublesEachRoundDownToAPacket) {
  ProbeBwCycle cycle;
  for (const int64_t expected : {64, 32, 16, 8, 4, 2, 1, 1, 1}) {
    cycle.RaiseInflightLongtermSlope(kDatagram * int64_t{64}, kDatagram);
    EXPECT_EQ(cycle.probe_up_acked_per_inc, kDatagram * expected);
  }
}

// Round trips of 20 ms. The rate of each is the test's choice, as its loss and its queue are.
class PathLossTest : public testing::Test {
 protected:
  PathLossTest() { model_.options.max_datagram = kDatagram; }

  // A round trip of 100 packets leaves at `rate`; those of the round trip before are acknowledged, `lost` of
  // them not.
  bool Round(Bandwidth rate, int64_t lost, Duration queue = Duration(0), bool lossy = false,
             Duration path = milliseconds(20)) {
    const ByteCount flight = kDatagram * int64_t{100};
    now_ += path;
    BbrEvent& e = model_.event;
    e.now = now_;
    e.path_rtt = path + queue;
    e.rs.prior_delivered = e.delivered;  // the first packet of the round trip is acknowledged
    e.newly_acked = flight - kDatagram * lost;
    e.delivered += e.newly_acked;
    e.newly_lost = kDatagram * lost;
    e.sample_rate = e.delivered_rate = Bandwidth::FromBytesAndTime(e.newly_acked, milliseconds(20));
    model_.min_rtt_filter.Update(now_, path, seconds(5), false);
    model_.rounds.CountLoss(e.newly_lost, ByteCount());
    if (model_.rounds.Advance(e)) answered_ = loss_.OnRoundEnd(lossy);
    model_.rounds.Count(e);
    const bool another = loss_.OnEventEnd();
    model_.bounded_rate = loss_.experiment() ? loss_.reference() * PathLoss::kExperimentGain : rate;
    loss_.OnPacketSent();
    return another;
  }
  // The rate at which 100 packets leave in a round trip.
  Bandwidth full() const { return Bandwidth::FromBytesAndTime(kDatagram * int64_t{100}, milliseconds(20)); }
  void Rounds(int count, int64_t lost, bool lossy) {
    for (int i = 0; i < count; ++i) Round(full(), lost, milliseconds(1), lossy);
  }

  BbrModel model_{RateOptions(), Random(1)};
  PathLoss loss_{&model_};
  Instant now_;
  bool answered_ = false;
};

TEST_F(PathLossTest, LossWithoutAnExperimentIsNotExcused) {
  for (int i = 0; i < 50; ++i) {
    Round(full(), 2, milliseconds(1));
    Round(full(), 40, milliseconds(10));
  }
  EXPECT_FALSE(loss_.known());
  EXPECT_EQ(loss_.floor(), 0);
  EXPECT_EQ(loss_.Excused(), 0);
}

TEST_F(PathLossTest, WhatIsLostInAnExperimentIsThePaths) {
  model_.state = BbrState::kProbeBwDown;
  for (int i = 0; i < 6; ++i) Round(full(), i == 0 ? 0 : 10, milliseconds(1), true);
  EXPECT_TRUE(loss_.known());
  EXPECT_NEAR(loss_.floor(), 0.1, 0.01);
}

TEST_F(PathLossTest, WhatIsGoneInAnExperimentWasOurs) {
  model_.state = BbrState::kProbeBwDown;
  bool slow = false;  // the packets now acknowledged left in an experiment
  for (int i = 0; i < 12; ++i) {
    const bool experiment = loss_.experiment();
    Round(full(), slow ? 0 : 30, milliseconds(1), !slow);
    slow = experiment;
  }
  EXPECT_TRUE(loss_.known());
  EXPECT_LT(loss_.floor(), 0.03);
}

TEST_F(PathLossTest, AnExperimentPacesBelowWhatWasDelivered) {
  model_.state = BbrState::kProbeBwDown;
  Rounds(3, 10, true);
  ASSERT_TRUE(loss_.experiment());
  EXPECT_LE(loss_.reference(), full() * 0.91);
}

TEST_F(PathLossTest, AnAnswerThatIsContradictedIsForgotten) {
  model_.state = BbrState::kProbeBwDown;
  Rounds(6, 0, true);
  ASSERT_TRUE(loss_.known());
  EXPECT_LT(loss_.floor(), 0.02);
  // More is lost: three answers of 100 packets in a row confirm it, and what counts is the smallest of four
  // blocks of 200, with an answer every 64 round trips.
  Rounds(500, 20, true);
  EXPECT_NEAR(loss_.floor(), 0.2, 0.02);
}

TEST_F(PathLossTest, NeverMoreThanHalfIsExcused) {
  model_.state = BbrState::kProbeBwDown;
  Rounds(40, 80, true);
  ASSERT_TRUE(loss_.known());
  EXPECT_EQ(loss_.floor(), PathLoss::kMaxExcused);
}

TEST_F(PathLossTest, ALongerPathIsAnother) {
  model_.state = BbrState::kProbeBwDown;
  Rounds(10, 5, true);
  EXPECT_TRUE(loss_.known());
  now_ += seconds(11);
  EXPECT_TRUE(Round(full(), 5, Duration(0), false, milliseconds(60)));
  EXPECT_FALSE(loss_.known());
}

}  // namespace
}  // namespace longhaul::transport
