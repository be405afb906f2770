// The 22 cases of draft-ietf-ccwg-bbr, appendix "BBR Example Test Cases", by their headings. Variables are
// the draft's. Each case states its path; unless it says otherwise 100 Mbit/s, 20 ms and a buffer that never
// overflows.
// Longhaul's controller passes the same cases; where it means to differ, the case says how and why.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/sim/rate/rate_sim.h"
#include "transport/core/rate/bbr/bbr.h"

namespace longhaul::transport {
namespace {

using sim::FlowOptions;
using sim::kDatagram;
using sim::LinkOptions;
using sim::PacketFate;
using sim::RateFlow;
using sim::Simulation;
using std::chrono::milliseconds;
using std::chrono::seconds;

LinkOptions Deep() {
  LinkOptions link;
  link.buffer_bdp = 10;
  return link;
}

// STARTUP's overshoot is lost here, so that inflight_longterm gets a value.
LinkOptions Shallow() {
  LinkOptions link;
  link.buffer_bdp = 0.25;
  return link;
}

class BbrDraft : public testing::TestWithParam<RateControl> {
 protected:
  void Start(const LinkOptions& link, FlowOptions flow = {}) {
    flow.rate.control = GetParam();
    simulation_ = std::make_unique<Simulation>(link);
    simulation_->AddFlow(flow);
    simulation_->flow(0).SetObserver(
        [this](const CongestionEvent& event) { in_flight_ = event.bytes_in_flight; });
  }
  const Bbr& controller() const { return dynamic_cast<const Bbr&>(simulation_->controller(0)); }
  const BbrModel& bbr() const { return controller().model(); }
  RateFlow& flow() { return simulation_->flow(0); }
  // As the controller saw it last; what it allows leaves after that.
  ByteCount in_flight() const { return in_flight_; }
  Instant now() const { return simulation_->now(); }
  void Run(Duration time) { simulation_->RunUntil(now() + time); }
  bool RunTo(BbrState state, Duration limit = seconds(20)) {
    return simulation_->RunUntil(now() + limit, [&] { return bbr().state == state; });
  }
  // To the next state; `holds` has to be true after every event before.
  template <typename Holds>
  bool RunOut(Duration limit, Holds holds) {
    const BbrState state = bbr().state;
    int violations = 0;
    const bool left = simulation_->RunUntil(now() + limit, [&] {
      if (bbr().state != state) return true;
      violations += !holds();
      return false;
    });
    EXPECT_EQ(violations, 0);
    return left;
  }
  bool RunOut(Duration limit) {
    return RunOut(limit, [] { return true; });
  }
  // `holds` has to be true after every event of that time.
  template <typename Holds>
  void Stays(Duration time, Holds holds) {
    int violations = 0;
    simulation_->RunUntil(now() + time, [&] {
      violations += !holds();
      return false;
    });
    EXPECT_EQ(violations, 0);
  }
  bool longhaul() const { return GetParam() == RateControl::kLonghaul; }
  bool InProbeBw() const {
    return bbr().state >= BbrState::kProbeBwDown && bbr().state <= BbrState::kProbeBwUp;
  }
  // From now on every n-th packet is lost; 0: none.
  void LoseEvery(uint64_t n) {
    flow().SetFilter([n](uint64_t number, Instant) { return PacketFate{.lost = n > 0 && number % n == 0}; });
  }
  // The next so many packets come this much later.
  void DelayPackets(uint64_t count, Duration extra) {
    const auto first = static_cast<uint64_t>(simulation_->stats(0).sent.value() / kDatagram.value());
    flow().SetFilter([first, count, extra](uint64_t number, Instant) {
      return PacketFate{.extra = number >= first && number < first + count ? extra : Duration(0)};
    });
  }
  // Packets that leave until then come this much later.
  void DelayUntil(Instant until, Duration extra) {
    flow().SetFilter([until, extra](uint64_t, Instant sent) {
      return PacketFate{.extra = sent < until ? extra : Duration(0)};
    });
  }

  std::unique_ptr<Simulation> simulation_;
  ByteCount in_flight_;
};

TEST_P(BbrDraft, ExitingStartupOnBandwidthPlateau) {
  Start(Deep());
  std::vector<uint64_t> rounds_of_count(FullPipe::kRounds + 1, 0);
  ASSERT_TRUE(RunOut(seconds(5), [&] {
    auto& round = rounds_of_count[static_cast<size_t>(bbr().full_pipe.count())];
    if (round == 0 || bbr().full_pipe.count() == 0) round = bbr().rounds.count();
    return !bbr().full_pipe.reached();
  }));
  EXPECT_EQ(bbr().state, BbrState::kDrain);
  EXPECT_EQ(bbr().full_pipe.count(), 3);
  EXPECT_TRUE(bbr().full_pipe.now());
  EXPECT_TRUE(bbr().full_pipe.reached());
  EXPECT_FALSE(flow().sampler().is_app_limited());
  EXPECT_NEAR(bbr().max_bw().mbps(), 100, 2);
  EXPECT_EQ(rounds_of_count[2], rounds_of_count[1] + 1);  // consecutive rounds
  EXPECT_EQ(bbr().rounds.count(), rounds_of_count[2] + 1);
}

TEST_P(BbrDraft, ExitingStartupOnLossWhenApplicationLimited) {
  FlowOptions app;
  app.app_rate = Bandwidth::Mbps(50);
  Start(Deep(), app);
  Run(seconds(2));
  ASSERT_EQ(bbr().state, BbrState::kStartup);
  ASSERT_TRUE(flow().sampler().is_app_limited());
  LoseEvery(10);  // 86 packets a round: 8 discontiguous losses
  if (longhaul()) {
    // Loss without a queue is the path's own and no reason to stop looking for its rate.
    Stays(seconds(1), [&] { return bbr().state == BbrState::kStartup; });
    simulation_->SetAppRate(0, Bandwidth::Zero());
    EXPECT_TRUE(RunTo(BbrState::kDrain, seconds(2)));
    EXPECT_NEAR(bbr().max_bw().mbps(), 100, 10);
    return;
  }
  const uint64_t round = bbr().rounds.count();
  ASSERT_TRUE(RunOut(seconds(1)));
  // Half of the path is used, so DRAIN ends with the ACK that began it.
  EXPECT_EQ(bbr().drain_start_round, bbr().rounds.count());
  EXPECT_TRUE(InProbeBw());
  EXPECT_TRUE(bbr().full_pipe.now());
  EXPECT_TRUE(bbr().full_pipe.reached());
  EXPECT_TRUE(flow().sampler().is_app_limited());
  EXPECT_LE(bbr().rounds.count() - round, 5u);  // to see the loss, a round of it, and its end
}

TEST_P(BbrDraft, ExitingDrainBasedOnInflight) {
  Start(Deep());
  ASSERT_TRUE(RunTo(BbrState::kDrain));
  EXPECT_DOUBLE_EQ(bbr().pacing_gain, 0.5);
  ASSERT_TRUE(RunOut(seconds(5), [&] { return in_flight() > bbr().Inflight(1.0); }));
  EXPECT_TRUE(InProbeBw());
  EXPECT_LE(in_flight(), bbr().Inflight(1.0));
  EXPECT_LE(bbr().rounds.count() - bbr().drain_start_round, Bbr::kDrainRounds);
}

TEST_P(BbrDraft, ExitingDrainBasedOnTime) {
  Start(Deep());
  ASSERT_TRUE(RunTo(BbrState::kDrain));
  // The appendix says 10 % less, but half the estimate drains a queue at 90 % of it in time. What DRAIN sends
  // has to be all that the path carries.
  simulation_->SetRate(Bandwidth::Mbps(50));
  const uint64_t start = bbr().drain_start_round;
  ASSERT_TRUE(RunOut(seconds(10)));
  EXPECT_TRUE(InProbeBw());
  EXPECT_GT(in_flight(), bbr().Inflight(1.0));
  EXPECT_EQ(bbr().rounds.count(), start + Bbr::kDrainRounds + 1);  // more than three have passed
}

TEST_P(BbrDraft, ExitingProbeUpOnBandwidthPlateau) {
  Start(Deep());
  ASSERT_TRUE(RunTo(BbrState::kProbeBwUp));
  int rounds = 0;
  uint64_t round = bbr().rounds.count();
  ASSERT_TRUE(RunOut(seconds(5), [&] {
    rounds += bbr().rounds.count() != round;
    round = bbr().rounds.count();
    return !bbr().full_pipe.now();
  }));
  EXPECT_EQ(bbr().state, BbrState::kProbeBwDown);
  EXPECT_EQ(simulation_->stats(0).queue_drops, ByteCount());
  EXPECT_EQ(simulation_->loss(0).packets_lost(), 0u);
  if (longhaul()) {
    // The queue that UP builds tells that the path is full before the third round trip without growth does.
    EXPECT_GE(flow().rtt().latest_rtt(), bbr().min_rtt() + bbr().min_rtt() / 10);
    return;
  }
  EXPECT_TRUE(bbr().full_pipe.now());
  EXPECT_EQ(bbr().full_pipe.count(), 3);
  EXPECT_GE(rounds, 2);
}

TEST_P(BbrDraft, ExitingProbeUpOnLossWhenApplicationLimited) {
  Start(Deep());
  ASSERT_TRUE(RunTo(BbrState::kProbeBwRefill));
  simulation_->SetAppRate(0, Bandwidth::Mbps(50));
  ASSERT_TRUE(RunTo(BbrState::kProbeBwUp, seconds(1)));
  Run(milliseconds(60));
  ASSERT_EQ(bbr().state, BbrState::kProbeBwUp);
  ASSERT_TRUE(flow().sampler().is_app_limited());
  const ByteCount before = bbr().bounds.inflight_longterm;
  LoseEvery(10);
  const uint64_t round = bbr().rounds.count();
  ASSERT_TRUE(RunOut(seconds(1)));
  // Little is in flight: DOWN may end with the ACK that began it.
  EXPECT_TRUE(bbr().state == BbrState::kProbeBwDown || bbr().state == BbrState::kProbeBwCruise);
  EXPECT_EQ(bbr().cycle.probe_up_acked_per_inc, BbrBounds::kInfinite);  // DOWN was entered
  EXPECT_LE(bbr().rounds.count() - round, 2u);
  // The appendix wants inflight_longterm updated "regardless of the application-limited state"; the draft's
  // own HandleInflightTooHigh() leaves it alone when the lost packet was application-limited, since what was
  // in flight then says nothing of what fits. The procedure wins.
  EXPECT_EQ(bbr().bounds.inflight_longterm, before);
}

TEST_P(BbrDraft, NeverExitingProbeUpOrStartupWhenApplicationLimitedWithNoLoss) {
  FlowOptions app;
  app.app_rate = Bandwidth::Mbps(10);
  Start(Deep(), app);
  // PROBE_RTT comes and goes every five seconds whatever the state: it is not an exit.
  Stays(seconds(60), [&] {
    const bool startup = bbr().state == BbrState::kStartup || bbr().state == BbrState::kProbeRtt;
    return startup && !bbr().full_pipe.reached();
  });

  Start(Deep());
  ASSERT_TRUE(RunTo(BbrState::kProbeBwRefill));
  simulation_->SetAppRate(0, Bandwidth::Mbps(10));
  ASSERT_TRUE(RunTo(BbrState::kProbeBwUp, seconds(1)));
  const Instant start = now();
  ASSERT_TRUE(RunOut(seconds(20)));
  EXPECT_EQ(bbr().state, BbrState::kProbeRtt);
  EXPECT_GT(now() - start, seconds(1));  // fifty round trips; a plateau would take four
}

TEST_P(BbrDraft, ExitingProbeDownBasedOnInflight) {
  for (const LinkOptions& link : {Deep(), Shallow()}) {
    SCOPED_TRACE(link.buffer_bdp);
    Start(link);
    ASSERT_TRUE(RunTo(BbrState::kProbeBwUp));
    ASSERT_TRUE(RunTo(BbrState::kProbeBwDown));
    // Longhaul may drain faster, and stays long enough to see that the queue is gone.
    EXPECT_LE(bbr().pacing_gain, 0.9);
    EXPECT_TRUE(longhaul() || bbr().pacing_gain == 0.9);
    ASSERT_TRUE(RunOut(seconds(5), [&] {
      return longhaul() || in_flight() > controller().policy().InflightWithHeadroom() ||
             in_flight() > bbr().Inflight(1.0);
    }));
    EXPECT_EQ(bbr().state, BbrState::kProbeBwCruise);
    EXPECT_LE(in_flight(), controller().policy().InflightWithHeadroom());
    EXPECT_LE(in_flight(), bbr().Inflight(1.0));
  }
}

TEST_P(BbrDraft, ExitingProbeDownAfterMaxTime) {
  LinkOptions link = Deep();
  link.rtt = milliseconds(60);  // so that 62 round trips take longer than bw_probe_wait
  Start(link);
  ASSERT_TRUE(RunTo(BbrState::kProbeBwCruise));
  Run(seconds(1));
  simulation_->SetRtt(milliseconds(59));  // a new minimum: PROBE_RTT does not come in between
  ASSERT_TRUE(RunTo(BbrState::kProbeBwUp));
  ASSERT_TRUE(RunTo(BbrState::kProbeBwDown));
  simulation_->SetRate(Bandwidth::Mbps(90));
  const Instant start = now();
  const Duration wait = bbr().cycle.bw_probe_wait;
  if (longhaul()) {
    // UP has left less of a queue: at 90 % of the rate it drains, and DOWN ends by that.
    ASSERT_TRUE(RunOut(wait + milliseconds(20)));
    EXPECT_TRUE(bbr().state == BbrState::kProbeBwCruise || bbr().state == BbrState::kProbeBwRefill);
    return;
  }
  EXPECT_GE(wait, seconds(2));
  EXPECT_LE(wait, seconds(3));
  ASSERT_TRUE(RunOut(seconds(10), [&] { return in_flight() > bbr().Inflight(1.0); }));
  EXPECT_EQ(bbr().state, BbrState::kProbeBwRefill);
  EXPECT_GT(now() - start, wait);
  EXPECT_LT(now() - start, wait + milliseconds(20));
}

TEST_P(BbrDraft, EnteringAndExitingProbeRtt) {
  Start(Deep());
  ASSERT_TRUE(RunTo(BbrState::kProbeBwCruise));
  Duration interval = BbrPolicy::kProbeRttInterval;
  if (longhaul()) {
    // DOWN meets the minimum for free, so that PROBE_RTT never comes; a path that has become longer does not.
    Stays(seconds(30), [&] { return bbr().state != BbrState::kProbeRtt; });
    interval = MinRttFilter::kFilterLen;
    simulation_->SetRtt(milliseconds(30));
  }
  Instant stamp;
  ASSERT_TRUE(simulation_->RunUntil(now() + seconds(30), [&] {
    if (bbr().state == BbrState::kProbeRtt) return true;
    stamp = bbr().min_rtt_filter.probe_rtt_min_stamp();
    return false;
  }));
  EXPECT_GT(now() - stamp, interval);
  EXPECT_LT(now() - stamp, interval + milliseconds(50));
  EXPECT_DOUBLE_EQ(bbr().cwnd_gain, 0.5);
  const ByteCount half = bbr().Inflight(0.5);
  Instant low = Instant::Infinite();
  const Instant entered = now();
  ASSERT_TRUE(RunOut(seconds(2), [&] {
    if (in_flight() <= half) low = std::min(low, now());
    return true;
  }));
  EXPECT_FALSE(low.IsInfinite());
  EXPECT_GE(now() - low, Bbr::kProbeRttDuration);
  EXPECT_LE(now() - entered, Bbr::kProbeRttDuration + 5 * milliseconds(30));
  EXPECT_TRUE(InProbeBw());
  EXPECT_TRUE(bbr().full_pipe.reached());
  simulation_->ResetStats();
  Run(milliseconds(500));
  // longhaul asks whose loss the end of PROBE_RTT is, at three quarters of the rate.
  EXPECT_GE(simulation_->Goodput(0).mbps(), longhaul() ? 78 : 85);
}

TEST_P(BbrDraft, SkippingProbeRttDueToApplicationLimitedSending) {
  Start(Deep());
  ASSERT_TRUE(RunTo(BbrState::kProbeBwCruise));
  simulation_->SetPaused(0, true);
  Run(seconds(6));
  ASSERT_EQ(in_flight(), ByteCount());
  ASSERT_TRUE(InProbeBw());
  ASSERT_GT(now() - bbr().min_rtt_filter.probe_rtt_min_stamp(), BbrPolicy::kProbeRttInterval);
  simulation_->SetPaused(0, false);
  const ByteCount sent = simulation_->stats(0).sent;
  ASSERT_TRUE(simulation_->RunUntil(now() + seconds(1), [&] { return simulation_->stats(0).sent > sent; }));
  EXPECT_TRUE(bbr().idle_restart);
  EXPECT_FALSE(simulation_->RunUntil(now() + seconds(4), [&] { return bbr().state == BbrState::kProbeRtt; }));
  EXPECT_FALSE(bbr().idle_restart);  // only until the first ACK
}

// ACKs come together every 30 ms on a path of 20 ms, the newest of them only. When each of them comes,
// STARTUP ends too early: CheckFullBWReached() looks at the sample of a round trip's first ACK, and that is
// the smallest of a batch, since the rest of the batch does not yet count as delivered.
TEST_P(BbrDraft, AchievingExpectedStartupBandwidthOnALinkWithAggregation) {
  LinkOptions link = Deep();
  link.ack_batch = milliseconds(30);
  link.ack_thinning = true;
  Start(link);
  const ByteCount bdp = link.rate * link.rtt;
  ByteCount extra;
  ByteCount cwnd;
  ASSERT_TRUE(RunOut(seconds(5), [&] {
    extra = std::max(extra, bbr().aggregation.extra_acked());
    cwnd = std::max(cwnd, bbr().cwnd);
    return true;
  }));
  EXPECT_GT(extra, bdp * 0.25);
  EXPECT_GT(cwnd, bdp * int64_t{2});
  EXPECT_GE(bbr().max_bw().mbps(), 95);
  EXPECT_LE(bbr().max_bw().mbps(), 130);  // a batch is not a faster path
}

TEST_P(BbrDraft, AchievingExpectedCruiseBandwidthOnALinkWithAggregation) {
  Start(Deep());
  ASSERT_TRUE(RunTo(BbrState::kProbeBwCruise));
  const ByteCount before = bbr().aggregation.extra_acked();
  simulation_->path().SetAckBatch(milliseconds(30));
  Run(seconds(1));
  const ByteCount after = bbr().aggregation.extra_acked();
  EXPECT_GT(after, before + kDatagram * int64_t{50});
  EXPECT_GE(bbr().cwnd, bbr().max_bw() * bbr().min_rtt() * 2.0 + after * 0.5);
  simulation_->ResetStats();
  Run(seconds(4));
  EXPECT_GE(simulation_->Utilisation(), 0.95);
  // The maximum of the last ten round trips: without batches it falls again.
  simulation_->path().SetAckBatch(Duration(0));
  Run(seconds(1));
  EXPECT_LT(bbr().aggregation.extra_acked(), after * 0.5);
}

TEST_P(BbrDraft, CorrectlyManagingSubPacketBdps) {
  LinkOptions link;
  link.rate = Bandwidth::Mbps(1);
  link.rtt = milliseconds(5);  // 625 bytes
  link.buffer = kDatagram * int64_t{50};
  Start(link);
  ASSERT_TRUE(simulation_->RunUntil(now() + seconds(10), [&] { return InProbeBw(); }));
  const ByteCount floor = kDatagram * BbrModel::kMinPipePackets;
  Stays(seconds(10), [&] { return bbr().cwnd >= floor; });
  simulation_->ResetStats();
  Stays(seconds(10), [&] { return bbr().cwnd >= floor && bbr().bounded_rate.mbps() <= 1.25 * 1.1; });
  EXPECT_NEAR(bbr().max_bw().mbps(), 1, 0.1);
  EXPECT_GE(simulation_->Utilisation(), 0.9);
}

TEST_P(BbrDraft, IncreasingBandwidth10xAndEnsuringFullBandwidthIsReached) {
  LinkOptions link = Shallow();
  link.rate = Bandwidth::Mbps(10);
  link.rtt = milliseconds(40);
  Start(link);
  ASSERT_TRUE(simulation_->RunUntil(now() + seconds(20),
                                    [&] { return bbr().bounds.inflight_longterm != BbrBounds::kInfinite; }));
  ASSERT_TRUE(RunTo(BbrState::kProbeBwCruise));
  simulation_->SetRate(Bandwidth::Mbps(100));
  ASSERT_TRUE(RunTo(BbrState::kProbeBwUp));
  // Each round trip of the probe adds twice as many packets as the one before: an ACK of this many bytes adds
  // one.
  uint64_t round = bbr().rounds.count();
  double per_increment = bbr().cycle.probe_up_acked_per_inc / bbr().cwnd;
  int doublings = 0;
  const uint64_t first = round;
  ASSERT_TRUE(simulation_->RunUntil(now() + seconds(10), [&] {
    if (bbr().state == BbrState::kProbeBwUp && bbr().rounds.count() > round) {
      round = bbr().rounds.count();
      const double next = bbr().cycle.probe_up_acked_per_inc / bbr().cwnd;
      doublings += next < per_increment * 0.7;
      per_increment = next;
    }
    return bbr().max_bw().mbps() >= 95;
  }));
  EXPECT_TRUE(longhaul() || doublings >= 4);  // longhaul hears of the queue: no bound in bytes holds it back
  // 345 packets at 100 Mbit/s: log2 is 8.4. A probe paces at 1.25, so a factor of ten takes ten round trips
  // at least.
  EXPECT_LE(bbr().rounds.count() - first, 30u);
}

TEST_P(BbrDraft, DecreasingBandwidth10xAndEnsuringMaxBandwidthAdaptsDown) {
  LinkOptions link;
  link.buffer = link.rate * link.rtt;
  Start(link);
  ASSERT_TRUE(RunTo(BbrState::kProbeBwCruise));
  simulation_->SetRate(Bandwidth::Mbps(10));
  // By Beta per round trip with loss, until what is in flight fits into the buffer, which holds ten of the
  // new BDPs.
  ASSERT_TRUE(simulation_->RunUntil(now() + seconds(2), [&] { return bbr().bw.mbps() < 30; }));
  EXPECT_GT(simulation_->stats(0).queue_drops, ByteCount());
  // Two cycles: the filter forgets at the end of each probe.
  for (int cycle = 0; cycle < 2; ++cycle) {
    ASSERT_TRUE(RunTo(BbrState::kProbeBwUp, seconds(60)));
    ASSERT_TRUE(RunTo(BbrState::kProbeBwDown, seconds(10)));
  }
  ASSERT_TRUE(RunTo(BbrState::kProbeBwCruise, seconds(10)));
  EXPECT_NEAR(bbr().max_bw().mbps(), 10, 1);
}

TEST_P(BbrDraft, HandlingTokenBucketPolicers) {
  LinkOptions link = Deep();
  link.policer_rate = Bandwidth::Mbps(20);
  link.policer_burst = Bandwidth::Mbps(20) * milliseconds(200);
  Start(link);
  ASSERT_TRUE(simulation_->RunUntil(now() + seconds(10), [&] { return InProbeBw(); }));
  ASSERT_TRUE(simulation_->RunUntil(now() + seconds(10), [&] {
    return bbr().bounds.bw_shortterm != Bandwidth::Max() &&
           bbr().bounds.inflight_shortterm != BbrBounds::kInfinite;
  }));
  EXPECT_GT(simulation_->stats(0).policer_drops, ByteCount());
  Run(seconds(10));
  simulation_->ResetStats();
  Run(seconds(20));
  // longhaul cannot tell a policer from a path that loses packets by itself but by stepping back: measured
  // 0.06 here.
  EXPECT_LE(simulation_->OwnLoss(), longhaul() ? 0.08 : 0.05);
  EXPECT_GE(simulation_->Goodput(0).mbps(), 20 * 0.85);
  EXPECT_LE(simulation_->Goodput(0).mbps(), 20 * 1.01);
}

// What SaveStateUponLoss() keeps, and whether it is back.
struct Saved {
  explicit Saved(const BbrModel& bbr)
      : bw_shortterm(bbr.bounds.bw_shortterm),
        inflight_shortterm(bbr.bounds.inflight_shortterm),
        inflight_longterm(bbr.bounds.inflight_longterm),
        cwnd(bbr.cwnd) {}
  void ExpectSaved(const BbrModel& bbr) const {
    EXPECT_EQ(bbr.bounds.undo.bw_shortterm, bw_shortterm);
    EXPECT_EQ(bbr.bounds.undo.inflight_shortterm, inflight_shortterm);
    EXPECT_EQ(bbr.bounds.undo.inflight_longterm, inflight_longterm);
  }
  void ExpectRestored(const BbrModel& bbr) const {
    EXPECT_EQ(bbr.bounds.bw_shortterm, bw_shortterm);
    EXPECT_EQ(bbr.bounds.inflight_shortterm, inflight_shortterm);
    EXPECT_EQ(bbr.bounds.inflight_longterm, inflight_longterm);
    EXPECT_GE(bbr.cwnd,
              cwnd * (BbrModel::kDefaultCwndGain / Bbr::kProbeUpCwndGain * 0.99));  // REFILL's gain again
    EXPECT_EQ(bbr.bounds.undo.state, std::nullopt);
  }
  Bandwidth bw_shortterm;
  ByteCount inflight_shortterm;
  ByteCount inflight_longterm;
  ByteCount cwnd;
};

TEST_P(BbrDraft, HandlingSpuriousFastRecovery) {
  Start(Deep());
  ASSERT_TRUE(RunTo(BbrState::kProbeBwUp));
  if (!longhaul()) Run(milliseconds(25));
  ASSERT_EQ(bbr().state, BbrState::kProbeBwUp);
  const Saved saved(bbr());
  // More packets than cross the threshold. By the letter of the draft what was saved would be forgotten:
  // leaving PROBE_UP resets is_loss_in_round, so the next lost packet of the episode would save again.
  DelayPackets(30, milliseconds(12));
  ASSERT_TRUE(RunOut(milliseconds(100)));
  EXPECT_EQ(bbr().state, BbrState::kProbeBwDown);
  EXPECT_GE(simulation_->loss(0).packets_lost(), 5u);
  EXPECT_EQ(bbr().bounds.undo.state, BbrState::kProbeBwUp);
  saved.ExpectSaved(bbr());
  EXPECT_NE(bbr().bounds.inflight_longterm, saved.inflight_longterm);
  // "Returns to its previous state" by way of REFILL, as HandleSpuriousLossDetection() has it.
  ASSERT_TRUE(RunTo(BbrState::kProbeBwRefill, milliseconds(100)));
  EXPECT_EQ(simulation_->loss(0).packets_spurious(), simulation_->loss(0).packets_lost());
  saved.ExpectRestored(bbr());
  EXPECT_TRUE(RunTo(BbrState::kProbeBwUp, milliseconds(200)));
}

// A probe timeout declares nothing lost (RFC 9002 §6.2): it is the ACK of a probe that overtook the flight
// that does.
TEST_P(BbrDraft, HandlingSpuriousRtoRecovery) {
  Start(Deep());
  ASSERT_TRUE(RunTo(BbrState::kProbeBwCruise));
  Run(milliseconds(100));
  const Saved saved(bbr());
  DelayUntil(now() + milliseconds(60), milliseconds(400));
  ASSERT_TRUE(
      simulation_->RunUntil(now() + seconds(1), [&] { return simulation_->loss(0).packets_lost() > 0; }));
  EXPECT_GT(simulation_->stats(0).probe_timeouts, 0u);
  saved.ExpectSaved(bbr());
  ASSERT_TRUE(simulation_->RunUntil(now() + seconds(1), [&] {
    return bbr().bounds.bw_shortterm < saved.bw_shortterm &&
           bbr().bounds.inflight_shortterm < saved.inflight_shortterm;
  }));
  ASSERT_TRUE(simulation_->RunUntil(now() + seconds(1), [&] {
    return simulation_->loss(0).packets_lost() == simulation_->loss(0).packets_spurious();
  }));
  saved.ExpectRestored(bbr());
  EXPECT_EQ(bbr().state, BbrState::kProbeBwCruise);
}

TEST_P(BbrDraft, EnteringAndExitingProbeRttDuringStartup) {
  FlowOptions app;
  app.app_rate = Bandwidth::Mbps(10);  // application-limited: STARTUP does not end
  Start(Deep(), app);
  if (longhaul()) {
    // Without a queue the minimum is met all the time; a longer path has to be measured.
    Stays(seconds(30), [&] { return bbr().state == BbrState::kStartup; });
    simulation_->SetRtt(milliseconds(30));
  }
  ASSERT_TRUE(RunTo(BbrState::kProbeRtt, seconds(12)));
  EXPECT_FALSE(bbr().full_pipe.reached());
  ASSERT_TRUE(RunOut(seconds(2)));
  EXPECT_EQ(bbr().state, BbrState::kStartup);
  simulation_->SetAppRate(0, Bandwidth::Zero());
  ASSERT_TRUE(RunTo(BbrState::kDrain, seconds(2)));
  EXPECT_GE(bbr().max_bw().mbps(), 98);
}

TEST_P(BbrDraft, HandlingLossDuringProbeUpAfterInflightLongtermIsSet) {
  Start(Shallow());
  ASSERT_TRUE(RunTo(BbrState::kProbeBwCruise));
  ASSERT_NE(bbr().bounds.inflight_longterm, BbrBounds::kInfinite);
  ASSERT_TRUE(RunTo(BbrState::kProbeBwUp));
  ByteCount before;
  ByteCount target;
  LoseEvery(10);
  ASSERT_TRUE(RunOut(seconds(1), [&] {
    before = bbr().bounds.inflight_longterm;
    target = std::min(bbr().Inflight(1.0), bbr().cwnd);
    return !bbr().full_pipe.now();
  }));
  EXPECT_EQ(bbr().state, BbrState::kProbeBwDown);
  EXPECT_LE(bbr().bounds.inflight_longterm, before - (longhaul() ? ByteCount() : ByteCount(1)));
  // What was in flight when the loss crossed the threshold, but not below Beta times the target.
  EXPECT_GE(bbr().bounds.inflight_longterm, target * (BbrBounds::kBeta * 0.95));
}

TEST_P(BbrDraft, HandlingApplicationLimitedSendingDuringProbeRefill) {
  Start(Deep());
  ASSERT_TRUE(RunTo(BbrState::kProbeBwRefill));
  const Bandwidth before = bbr().max_bw();
  simulation_->SetAppRate(0, Bandwidth::Mbps(5));
  ASSERT_TRUE(RunOut(milliseconds(200), [&] { return bbr().max_bw() >= before; }));
  EXPECT_EQ(bbr().state, BbrState::kProbeBwUp);
  EXPECT_EQ(bbr().max_bw(), before);
  Run(milliseconds(100));
  EXPECT_EQ(bbr().state, BbrState::kProbeBwUp);
  EXPECT_EQ(bbr().max_bw(), before);
  simulation_->SetAppRate(0, Bandwidth::Zero());
  ASSERT_TRUE(RunTo(BbrState::kProbeBwDown, seconds(2)));
  EXPECT_NEAR(bbr().max_bw().mbps(), 100, 3);
  EXPECT_TRUE(RunTo(BbrState::kProbeBwCruise, seconds(2)));
}

INSTANTIATE_TEST_SUITE_P(Draft, BbrDraft, testing::Values(RateControl::kBbr, RateControl::kLonghaul),
                         [](const auto& p) { return std::string(NameOf(p.param)); });

}  // namespace
}  // namespace longhaul::transport
