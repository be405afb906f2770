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
  filter.Update(Mbps(80), false);
  filter.Update(Mbps(50), false);
  EXPECT_EQ(filter.max_bw(), Mbps(80));
  filter.Advance();
  filter.Update(Mbps(60), false);
  EXPECT_EQ(filter.max_bw(), Mbps(80));
  filter.Advance();
  EXPECT_EQ(filter.max_bw(), Mbps(60));
  filter.Advance();  // a cycle without a sample does not end
  EXPECT_EQ(filter.max_bw(), Mbps(60));
}

TEST(MaxBwFilter, LimitedSamplesOnlyRaise) {
  MaxBwFilter filter;
  filter.Update(Mbps(40), true);
  filter.Advance();
  filter.Update(Mbps(30), true);
  filter.Advance();
  EXPECT_EQ(filter.max_bw(), Mbps(40));
  filter.Update(Bandwidth::Zero(), false);
  filter.Update(Mbps(70), true);
  EXPECT_EQ(filter.max_bw(), Mbps(70));
  filter.Replace(Mbps(10));
  filter.Update(Mbps(9), false);
  EXPECT_EQ(filter.max_bw(), Mbps(10));
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

class PathLossTest : public testing::Test {
 protected:
  // An event: 100 packets, some of them lost, behind so much queue on a path of 20 ms.
  bool Event(Duration queue, int64_t lost, Duration path = milliseconds(20)) {
    now_ += milliseconds(20);
    BbrEvent& e = model_.event;
    e.now = now_;
    e.path_rtt = path + queue;
    e.newly_acked = kDatagram * (100 - lost);
    e.newly_lost = kDatagram * lost;
    model_.min_rtt_filter.Update(now_, path, seconds(5), false);
    return loss_.OnEventEnd();
  }

  BbrModel model_{RateOptions(), Random(1)};
  PathLoss loss_{&model_};
  Instant now_;
};

TEST_F(PathLossTest, LossBehindAShortQueueIsThePaths) {
  for (int i = 0; i < 50; ++i) {
    Event(milliseconds(1), 2);    // random loss
    Event(milliseconds(10), 40);  // a queue that overflows
  }
  EXPECT_TRUE(loss_.IsOfShortQueue());
  EXPECT_NEAR(loss_.floor(), 0.02, 0.002);
  EXPECT_EQ(loss_.Excused(), loss_.floor());
}

TEST_F(PathLossTest, AnInvisibleQueueTellsNothing) {
  for (int i = 0; i < 50; ++i) Event(milliseconds(1), 10);
  EXPECT_TRUE(loss_.QueueInvisible());
  EXPECT_FALSE(loss_.known());
  EXPECT_EQ(loss_.floor(), 0);
}

TEST_F(PathLossTest, ALongerPathIsAnother) {
  for (int i = 0; i < 50; ++i) Event(milliseconds(i % 2 * 10), 5);
  EXPECT_TRUE(loss_.known());
  now_ += seconds(11);
  EXPECT_TRUE(Event(milliseconds(0), 5, milliseconds(60)));
  EXPECT_FALSE(loss_.known());
}

}  // namespace
}  // namespace longhaul::transport
