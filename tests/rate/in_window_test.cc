// A5: inside a window the rate follows the loss. None for several round trips, or less than the target:
// raise. Between the target and the job's threshold: hold. At the threshold, beyond what experiments have
// confirmed as the path's own: halve. In STARTUP too, where an experiment below the delivered rate asks
// first.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/rate/watched_flow.h"

namespace longhaul::transport {
namespace {

using sim::FlowOptions;
using sim::LinkOptions;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kRtt = milliseconds(40);
constexpr LinkOptions kPath{.rate = Bandwidth::Mbps(100), .rtt = kRtt, .buffer_bdp = 1};

LinkOptions Shallow(double ms) {
  LinkOptions link{.rate = Bandwidth::Mbps(100), .rtt = kRtt};
  link.buffer = link.rate * Duration(static_cast<int64_t>(ms * 1e6));
  return link;
}

bool Experiments(const WatchedFlow& flow) { return flow.bbr().policy().RateCeiling() < Bandwidth::Max(); }

// In CRUISE, with no experiment under way, of a path that is known to lose nothing.
void Settle(WatchedFlow* flow, Duration time = seconds(4)) {
  flow->Run(time);
  ASSERT_TRUE(flow->RunTo(BbrState::kProbeBwUp));
  ASSERT_TRUE(flow->RunTo(BbrState::kProbeBwCruise));
  flow->Run(milliseconds(100));
  ASSERT_TRUE(flow->bbr().path_loss().has_value()) << "an experiment has answered";
}

// The capacity falls to a half, so that what is lost is the sender's own: from four places within a round
// trip and the next ones, how often the rate is halved within four round trips. (One until it is seen, one
// that is lost in part, one that decides.)
int HalvedWhenTheCapacityIs(double threshold) {
  int halved = 0;
  for (const int offset : {0, 37, 74, 111}) {
    FlowOptions job;
    job.rate.loss_limits.halve_threshold = threshold;
    WatchedFlow flow(Shallow(2), job);
    Settle(&flow);
    flow.Run(milliseconds(offset));
    const double before = flow.pacing();
    flow.simulation().SetRate(Bandwidth::Mbps(50));
    halved += flow.RunUntil([&] { return flow.pacing() <= before * 0.51; }, kRtt * 4);
  }
  return halved;
}

TEST(A5InWindow, LossBeyondTheThresholdHalvesTheRateWithinRoundTrips) {
  EXPECT_GE(HalvedWhenTheCapacityIs(LossLimits().halve_threshold), 3);
}

TEST(A5InWindow, TheThresholdIsTheJobs) { EXPECT_LE(HalvedWhenTheCapacityIs(0.6), 1); }

TEST(A5InWindow, TheThresholdIsBeyondWhatExperimentsHaveConfirmed) {
  LinkOptions link = kPath;
  link.loss = 0.4;
  WatchedFlow flow(link);
  ASSERT_TRUE(flow.RunTo(BbrState::kProbeBwCruise));
  flow.Run(seconds(6));
  double slowest = 1000;
  flow.Run(seconds(6), [&] {
    if (!Experiments(flow) && flow.state() != BbrState::kProbeBwDown)
      slowest = std::min(slowest, flow.pacing());
  });
  EXPECT_GE(slowest, 85);
  EXPECT_EQ(flow.violation(), "");
}

TEST(A5InWindow, LossBelowTheTargetChangesNothing) {
  WatchedFlow flow(kPath);
  Settle(&flow);
  flow.simulation().SetLoss(0.01);
  double slowest = 1000;
  flow.Run(seconds(6), [&] {
    if (!Experiments(flow) && flow.state() != BbrState::kProbeBwDown)
      slowest = std::min(slowest, flow.pacing());
  });
  EXPECT_GE(slowest, 97);
}

// A quarter of the capacity goes. What the queue drops is more than the target and less than the threshold.
TEST(A5InWindow, LossBetweenTargetAndThresholdHoldsTheRateAtWhatIsDelivered) {
  WatchedFlow flow(Shallow(2));
  Settle(&flow);
  flow.simulation().SetRate(Bandwidth::Mbps(75));
  Duration held{0};
  Instant last = flow.now();
  double slowest = 1000;
  flow.Run(seconds(1), [&] {
    if (!Experiments(flow) && flow.pacing() <= 77) held += flow.now() - last;
    if (!Experiments(flow) && flow.state() == BbrState::kProbeBwCruise)
      slowest = std::min(slowest, flow.pacing());
    last = flow.now();
  });
  EXPECT_GE(held, kRtt * 8);
  EXPECT_GE(slowest, 60) << "held, not halved";
}

// Heavy loss for two round trips halves the rate; the round trips after them have none, and raise it step by
// step.
TEST(A5InWindow, RoundTripsWithoutLossRaiseTheRateAgain) {
  for (const int offset : {0, 111, 200}) {
    SCOPED_TRACE(offset);
    WatchedFlow flow(kPath);
    Settle(&flow);
    flow.Run(milliseconds(offset));
    const double before = flow.pacing();
    flow.simulation().SetLoss(0.5);
    flow.Run(kRtt * 2);
    flow.simulation().SetLoss(0);
    double low = before;
    double high = 0;
    flow.Run(kRtt * 23, [&] {
      if (flow.state() == BbrState::kProbeBwRefill || flow.state() == BbrState::kProbeBwUp) return;
      low = std::min(low, flow.pacing());
      if (low < before * 0.55) high = std::max(high, flow.pacing());
    });
    EXPECT_LE(low, before * 0.55);
    EXPECT_GE(high, before * 0.9) << "without a probe";
    EXPECT_EQ(flow.violation(), "");
  }
}

// --- What is whose ---

TEST(A5InWindow, WhatThePathLosesCostsOnlyItself) {
  for (const double loss : {0.05, 0.2}) {
    SCOPED_TRACE(loss);
    LinkOptions link = kPath;
    link.loss = loss;
    WatchedFlow flow(link);
    flow.Run(seconds(4));
    EXPECT_GE(flow.SentWhile(seconds(6)), 93);
    EXPECT_EQ(flow.violation(), "");
  }
}

// What was sent before the loss began, and lost nothing, is no part of the answer.
TEST(A5InWindow, LossThatBeginsInMidRunIsAnsweredWithinSeconds) {
  double utilisation = 0;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    WatchedFlow flow({.rate = Bandwidth::Mbps(50), .rtt = milliseconds(20), .seed = seed});
    flow.Run(seconds(8) + milliseconds(173) * static_cast<int64_t>(seed));
    flow.simulation().SetLoss(0.4);
    flow.Run(seconds(4));
    flow.simulation().ResetStats();
    flow.Run(seconds(4));
    utilisation += flow.simulation().Utilisation() / 5;
    EXPECT_EQ(flow.violation(), "");
  }
  EXPECT_GE(utilisation, 0.85);
}

// Each round trip is slower than the last and delivers less: that says nothing of what the path has.
TEST(A5InWindow, WhileThePathIsAskedItsBandwidthIsNotForgotten) {
  WatchedFlow flow({.rate = Bandwidth::Mbps(50), .rtt = milliseconds(20)});
  flow.Run(seconds(8));
  flow.simulation().SetLoss(0.4);
  double least = 50;
  flow.Run(seconds(2), [&] { least = std::min(least, flow.model().max_bw().mbps()); });
  EXPECT_GE(least, 25);
}

// Its packets are few: a hold in each round trip would end at the lowest rate before they are an answer.
TEST(A5InWindow, AnExperimentThatTheApplicationKeepsShortIsNotHeld) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    WatchedFlow flow({.rate = Bandwidth::Mbps(50), .rtt = milliseconds(20), .seed = seed});
    flow.Run(seconds(8));
    flow.simulation().SetAppRate(0, Bandwidth::Mbps(5));
    flow.Run(seconds(1));
    flow.simulation().SetLoss(0.4);
    double least = 50;
    flow.Run(seconds(2), [&] { least = std::min(least, flow.pacing()); });
    EXPECT_GE(least, 6);
  }
}

TEST(A5InWindow, AfterThePathsLossHasEndedItIsNoLongerExcused) {
  LinkOptions link = Shallow(10);
  link.loss = 0.2;
  WatchedFlow flow(link);
  flow.Run(seconds(5));
  EXPECT_GE(flow.bbr().policy().Excused(), 0.12);
  flow.simulation().SetLoss(0);
  flow.Run(seconds(3));
  EXPECT_LE(flow.bbr().policy().Excused(), 0.02);
  flow.simulation().ResetStats();
  flow.Run(seconds(6));
  EXPECT_LE(flow.simulation().OwnLoss(), 0.02);
}

// --- STARTUP ---

TEST(A5InWindow, StartupAsksWhoseLossItIsBeforeItGivesUp) {
  LinkOptions link{.rate = Bandwidth::Mbps(1000), .rtt = milliseconds(50), .buffer_bdp = 1, .loss = 0.1};
  WatchedFlow flow(link);
  ASSERT_TRUE(flow.RunUntil([&] { return flow.state() != BbrState::kStartup; }));
  EXPECT_GT(flow.startup_experiment_packets(), 0);
  EXPECT_GE(flow.snapshot().bandwidth.mbps(), 900);
  EXPECT_LE(flow.now(), Instant() + seconds(3));
  EXPECT_EQ(flow.violation(), "");
}

TEST(A5InWindow, StartupEndsWhenTheLossIsItsOwn) {
  for (const double ms : {2.0, 5.0, 10.0}) {
    SCOPED_TRACE(ms);
    WatchedFlow flow(Shallow(ms));
    ASSERT_TRUE(flow.RunUntil([&] { return flow.simulation().stats(0).queue_drops.value() > 0; }));
    const Instant lost = flow.now();
    ASSERT_TRUE(flow.RunUntil([&] { return flow.state() != BbrState::kStartup; }));
    EXPECT_LE(flow.now() - lost, kRtt * 5);
    EXPECT_LE(flow.simulation().stats(0).queue_drops / (Bandwidth::Mbps(100) * Duration(kRtt)), 4.5);  // BDPs
    EXPECT_EQ(flow.violation(), "");
  }
}

// Four flows in STARTUP at once: each one's delivery may still grow, at the others' cost.
TEST(A5InWindow, StartupEndsForItsOwnLossThoughTheDeliveryStillGrows) {
  WatchedFlow flow(Shallow(10));
  for (int i = 1; i < 4; ++i) flow.simulation().AddFlow({});
  ASSERT_TRUE(flow.RunUntil([&] { return flow.simulation().stats(0).queue_drops.value() > 0; }));
  const Instant lost = flow.now();
  ASSERT_TRUE(flow.RunUntil([&] { return flow.state() != BbrState::kStartup; }));
  EXPECT_LE(flow.now() - lost, kRtt * 11 / 2);
  EXPECT_LE(flow.simulation().stats(0).queue_drops / (Bandwidth::Mbps(100) * Duration(kRtt)), 0.7);  // BDPs
}

}  // namespace
}  // namespace longhaul::transport
