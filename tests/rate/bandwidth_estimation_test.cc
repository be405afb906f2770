// A3: in every cycle of round trips the pacing gain varies, so that a queue builds and drains, and the
// bandwidth is read from it; also while a server's grant sets the rate.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/rate/watched_flow.h"

namespace longhaul::transport {
namespace {

using sim::LinkOptions;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr LinkOptions kPath{.rate = Bandwidth::Mbps(100), .rtt = milliseconds(40), .buffer_bdp = 2};
// A packet of the pacer's quantum in front of another one is no queue.
constexpr Duration kNoQueue = milliseconds(1);

// One stay in a state.
struct Stay {
  BbrState state;
  double gain = 0;      // the largest pacing rate over the estimate
  Duration longest{0};  // queue
  Duration at_end{0};   // likewise
};

std::vector<Stay> Stays(WatchedFlow* flow, Duration time) {
  std::vector<Stay> stays;
  flow->Run(time, [&] {
    if (stays.empty() || stays.back().state != flow->state()) stays.push_back({flow->state()});
    Stay& stay = stays.back();
    stay.gain = std::max(stay.gain, flow->pacing() / flow->snapshot().bandwidth.mbps());
    stay.at_end = flow->simulation().path().Waiting(flow->now());
    stay.longest = std::max(stay.longest, stay.at_end);
  });
  // The first and the last were not seen in full.
  if (!stays.empty()) stays.erase(stays.begin());
  if (!stays.empty()) stays.pop_back();
  return stays;
}

TEST(A3BandwidthEstimation, ThePacingGainVariesWithinEachCycle) {
  WatchedFlow flow(kPath);
  flow.Run(seconds(2));
  int cycles = 0;
  for (const Stay& stay : Stays(&flow, seconds(8))) {
    SCOPED_TRACE(BbrStateName(stay.state));
    if (stay.state == BbrState::kProbeBwUp) {
      EXPECT_NEAR(stay.gain, 1.25, 0.02);
    }
    if (stay.state == BbrState::kProbeBwDown) {
      EXPECT_LE(stay.gain, 0.92);
    }
    if (stay.state == BbrState::kProbeBwCruise) {
      EXPECT_NEAR(stay.gain, 1, 0.02);
    }
    if (stay.state == BbrState::kProbeBwRefill) {
      EXPECT_NEAR(stay.gain, 1, 0.02);
    }
    cycles += stay.state == BbrState::kProbeBwUp;
  }
  EXPECT_GE(cycles, 4);
  EXPECT_EQ(flow.violation(), "");
}

TEST(A3BandwidthEstimation, UpBuildsAQueueAndDownDrainsIt) {
  WatchedFlow flow(kPath);
  flow.Run(seconds(2));
  int cycles = 0;
  for (const Stay& stay : Stays(&flow, seconds(8))) {
    SCOPED_TRACE(BbrStateName(stay.state));
    if (stay.state == BbrState::kProbeBwUp) {
      EXPECT_GE(stay.longest, milliseconds(5));
    }
    if (stay.state == BbrState::kProbeBwDown) {
      EXPECT_LE(stay.at_end, kNoQueue);
    }
    if (stay.state == BbrState::kProbeBwCruise) {
      EXPECT_LE(stay.longest, kNoQueue);
    }
    cycles += stay.state == BbrState::kProbeBwUp;
  }
  EXPECT_GE(cycles, 4);
}

TEST(A3BandwidthEstimation, TheEstimateFollowsWhatTheQueueShows) {
  WatchedFlow flow(kPath);
  flow.Run(seconds(3));
  EXPECT_NEAR(flow.snapshot().bandwidth.mbps(), 100, 2);
  flow.simulation().SetRate(Bandwidth::Mbps(130));
  flow.Run(seconds(5));
  EXPECT_NEAR(flow.snapshot().bandwidth.mbps(), 130, 3);
  flow.simulation().SetRate(Bandwidth::Mbps(70));
  flow.Run(seconds(5));
  EXPECT_NEAR(flow.snapshot().bandwidth.mbps(), 70, 2);
  EXPECT_EQ(flow.violation(), "");
}

// A fall to a third of the bandwidth is seen within round trips, not within cycles.
TEST(A3BandwidthEstimation, WhatTheDeliveryContradictsIsForgottenWithinRoundTrips) {
  WatchedFlow flow({.rate = Bandwidth::Mbps(100), .rtt = milliseconds(40), .buffer_bdp = 1});
  flow.Run(seconds(4));
  ASSERT_TRUE(flow.RunTo(BbrState::kProbeBwCruise));
  flow.simulation().SetRate(Bandwidth::Mbps(30));
  EXPECT_TRUE(flow.RunUntil([&] { return flow.snapshot().bandwidth <= Bandwidth::Mbps(36); }, seconds(1)))
      << flow.snapshot().bandwidth.mbps();
}

// A grant that a probe could reach takes the part of the cycle: nothing is sent faster or slower.
TEST(A3BandwidthEstimation, AGrantSetsTheRateInsteadOfTheCycle) {
  for (const double grant : {10.0, 60.0, 90.0}) {
    SCOPED_TRACE(grant);
    WatchedFlow flow(kPath);
    flow.Run(seconds(2));
    flow.SetGrant(Bandwidth::Mbps(grant));
    flow.Run(milliseconds(500));
    flow.Run(seconds(8), [&] { ASSERT_NEAR(flow.pacing(), grant, 0.1) << BbrStateName(flow.state()); });
    EXPECT_NEAR(flow.SentWhile(seconds(2)), grant, grant * 0.03);
    EXPECT_EQ(flow.violation(), "");
  }
}

// Of what the path has delivered, and no more than a probe asks for.
TEST(A3BandwidthEstimation, AGrantBeyondAProbesReachChangesNothing) {
  WatchedFlow granted(kPath);
  WatchedFlow free(kPath);
  for (WatchedFlow* flow : {&granted, &free}) flow->Run(seconds(2));
  granted.SetGrant(Bandwidth::Mbps(1000));
  for (WatchedFlow* flow : {&granted, &free}) flow->Run(seconds(5));
  EXPECT_EQ(granted.pacing(), free.pacing());
  EXPECT_EQ(granted.simulation().stats(0).sent, free.simulation().stats(0).sent);
  EXPECT_EQ(granted.violation(), "");
}

// A grant of more than the path has fills its queue from the first round trip on. STARTUP ends all the same,
// and the cycle drains what the grant lets stand.
TEST(A3BandwidthEstimation, AGrantAboveTheCapacityKeepsNoQueue) {
  WatchedFlow flow({.rate = Bandwidth::Mbps(40), .rtt = milliseconds(100), .buffer_bdp = 4});
  flow.SetGrant(Bandwidth::Mbps(44));
  EXPECT_TRUE(flow.RunUntil([&] { return flow.model().IsInProbeBw(); }, seconds(5)));
  flow.Run(seconds(5));
  double seconds_of_queue = 0;
  int samples = 0;
  flow.Run(seconds(20), [&] {
    const Duration queue = flow.model().QueueDelay();
    seconds_of_queue += std::chrono::duration<double>(queue).count();
    ++samples;
  });
  EXPECT_LE(seconds_of_queue / samples, 0.075);  // 64 ms; without the cycle it stays above 100 ms
  EXPECT_GE(flow.SentWhile(seconds(5)), 0.92 * 40);
  EXPECT_EQ(flow.violation(), "");
}

// Eight flows overflow the path in STARTUP: what each has found is less than its share, and its window is as
// small. Their grants of 0.92 of the path are neither's prisoner.
TEST(A3BandwidthEstimation, GrantsAreFollowedWhateverAnOverloadHasLeftBehind) {
  for (const uint64_t seed : {1, 2}) {
    SCOPED_TRACE(seed);
    LinkOptions link{.rate = Bandwidth::Mbps(200), .rtt = milliseconds(20), .buffer_bdp = 0.5, .loss = 0.02};
    link.seed = seed;
    sim::Simulation simulation(link);
    for (int i = 0; i < 8; ++i) simulation.AddFlow({});
    simulation.RunUntil(Instant() + milliseconds(150));
    for (size_t i = 0; i < 8; ++i) simulation.SetGrant(i, Bandwidth::Mbps(23));
    simulation.RunUntil(Instant() + milliseconds(600));
    simulation.ResetStats();
    simulation.RunUntil(Instant() + milliseconds(1600));
    for (size_t i = 0; i < 8; ++i) {
      // An experiment costs 0.5.
      EXPECT_GE(Bandwidth::FromBytesAndTime(simulation.stats(i).sent, seconds(1)).mbps(), 22.2) << i;
    }
  }
}

// The grant goes, and the rate is there at once: no STARTUP, no cycle of probes is needed.
TEST(A3BandwidthEstimation, AfterAGrantTheRateIsThereAtOnce) {
  WatchedFlow flow(kPath);
  flow.Run(seconds(2));
  flow.SetGrant(Bandwidth::Mbps(20));
  flow.Run(seconds(5));
  EXPECT_NEAR(flow.SentWhile(seconds(2)), 20, 1);
  flow.SetGrant(Bandwidth::Zero());
  // An experiment may be due.
  EXPECT_TRUE(flow.RunUntil([&] { return flow.pacing() >= 90; }, milliseconds(400)));
  EXPECT_GE(flow.SentWhile(seconds(2)), 80);
}

}  // namespace
}  // namespace longhaul::transport
