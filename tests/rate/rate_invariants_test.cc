// What holds whatever happens on the path, and what the parts must refuse.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/rate/watched_flow.h"
#include "transport/core/rate/bbr/bbr_filters.h"

namespace longhaul::transport {
namespace {

using sim::FlowOptions;
using sim::LinkOptions;
using sim::StallMarks;
using std::chrono::milliseconds;
using std::chrono::seconds;

// --- The whole controller ---

// The estimate once ran away here: samples of stalls were marked, what was excused grew with the own loss,
// and the rate with it.
TEST(RateInvariants, StallsInAShallowBufferDoNotLetTheRateRunAway) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    LinkOptions link{.rate = Bandwidth::Mbps(200), .rtt = milliseconds(40), .seed = seed};
    link.buffer = link.rate * Duration(milliseconds(5));
    FlowOptions options;
    options.stall_marks = StallMarks::kAlways;
    WatchedFlow flow(link, options);
    Random stalls(seed);
    for (int i = 1; i < 500; ++i) {
      flow.simulation().At(Instant() + milliseconds(20) * i, [&] {
        flow.simulation().Stall(0, Duration(static_cast<int64_t>(stalls.Below(1'000'000))));
      });
    }
    ASSERT_TRUE(flow.RunUntil([&] { return flow.state() != BbrState::kStartup; }, seconds(2)));
    flow.simulation().ResetStats();
    flow.simulation().RunUntil(Instant() + seconds(10));
    EXPECT_LT(flow.simulation().OwnLoss(), 0.02);
    EXPECT_LE(flow.largest_pacing(), 1.3);
    EXPECT_GE(flow.simulation().Utilisation(), 0.9);
    EXPECT_EQ(flow.violation(), "");
  }
}

struct Cell {
  const char* name;
  double loss;
  double queue_ms;
  double grant = 0;
  double mean_burst = 0;
};

class AnyPath : public testing::TestWithParam<Cell> {};

TEST_P(AnyPath, TheBoundsHoldAndNoMoreIsExcusedThanThePathLoses) {
  const Cell& cell = GetParam();
  LinkOptions link{.rate = Bandwidth::Mbps(100), .rtt = milliseconds(40), .loss = cell.loss};
  link.buffer = link.rate * Duration(static_cast<int64_t>(cell.queue_ms * 1e6));
  link.mean_burst = cell.mean_burst;
  WatchedFlow flow(link);
  if (cell.grant > 0) flow.SetGrant(Bandwidth::Mbps(cell.grant));
  double excused = 0;
  flow.Run(seconds(3));
  flow.Run(seconds(12), [&] { excused = std::max(excused, flow.bbr().policy().Excused()); });
  EXPECT_EQ(flow.violation(), "");
  // An experiment ends with a hundred packets: three standard errors of as many.
  const double chance =
      3 * std::sqrt(std::max(cell.loss, 0.01) / 100 * std::max(1.0, 2 * cell.mean_burst - 1));
  EXPECT_LE(excused, std::min(PathLoss::kMaxExcused, cell.loss + chance));
  EXPECT_LE(flow.largest_pacing(), 1.6);
}

INSTANTIATE_TEST_SUITE_P(RateInvariants, AnyPath,
                         testing::Values(Cell{"Clean", 0, 40}, Cell{"Shallow", 0, 2},
                                         Cell{"ShallowLossy", 0.05, 3}, Cell{"Lossy", 0.2, 40},
                                         Cell{"VeryLossy", 0.6, 20}, Cell{"Bursty", 0.05, 20, 0, 8},
                                         Cell{"Granted", 0.1, 20, 60}, Cell{"GrantedTooMuch", 0.05, 10, 150}),
                         [](const auto& p) { return std::string(p.param.name); });

// Experiments happen where there is loss to be explained, and are slow indeed: counted in packets, whatever
// the controller says of them.
TEST(RateInvariants, AnExperimentIsSlowerThanWhatWasDelivered) {
  LinkOptions link{.rate = Bandwidth::Mbps(100), .rtt = milliseconds(40), .buffer_bdp = 1, .loss = 0.05};
  WatchedFlow flow(link);
  flow.Run(seconds(2));
  double slowest = 1000;
  for (int i = 0; i < 300; ++i) slowest = std::min(slowest, flow.SentWhile(link.rtt));
  EXPECT_GT(flow.experiment_packets(), 0);
  EXPECT_LE(slowest, 80);
  EXPECT_EQ(flow.violation(), "");
}

// One of sixteen cannot end an overload alone, and the one's experiment shows the loss that the others cause.
TEST(RateInvariants, FlowsThatShareAnOverloadEndItTogether) {
  LinkOptions link{.rate = Bandwidth::Mbps(100), .rtt = milliseconds(20), .buffer_bdp = 0.05};
  sim::Simulation simulation(link);
  for (int i = 0; i < 16; ++i) simulation.AddFlow({});
  simulation.RunUntil(Instant() + seconds(3));
  simulation.ResetStats();
  simulation.RunUntil(Instant() + seconds(13));
  EXPECT_LE(simulation.OwnLoss(), 0.2) << "0.35 when each believes its first answer";
  EXPECT_GE(simulation.Utilisation(), 0.9);
}

// In bursts a hundred packets show nothing, and one round trip in five loses more than any answer explains.
TEST(RateInvariants, BurstsOfTenAreNoOverload) {
  for (const int rtt : {20, 200}) {
    SCOPED_TRACE(rtt);
    LinkOptions link{.rate = Bandwidth::Mbps(100), .rtt = milliseconds(rtt), .buffer_bdp = 1, .loss = 0.05};
    link.mean_burst = 10;
    sim::Simulation simulation(link);
    simulation.AddFlow({});
    simulation.RunUntil(Instant() + seconds(5));
    simulation.ResetStats();
    simulation.RunUntil(Instant() + seconds(25));
    EXPECT_GE(simulation.Utilisation(), 0.6);
  }
}

// A queue that no lower rate shortens is the path's new length: the minimum RTT forgets after ten seconds.
TEST(RateInvariants, ALongerPathIsNotYieldedToForTenSeconds) {
  WatchedFlow flow({.rate = Bandwidth::Mbps(100), .rtt = milliseconds(20), .buffer_bdp = 1});
  flow.Run(seconds(5));
  flow.simulation().SetRtt(milliseconds(60));
  flow.Run(seconds(2));
  EXPECT_GE(flow.SentWhile(seconds(7)), 70);
  EXPECT_EQ(flow.violation(), "");
}

// --- The filter ---

TEST(RateInvariants, TheEstimateIsNeverMoreThanWhatWasDeliveredAccountsFor) {
  MaxBwFilter filter;
  filter.SetExcused(0.5);
  filter.Update(Bandwidth::Mbps(100), Bandwidth::Mbps(60), false);
  EXPECT_NEAR(filter.max_bw().mbps(), 100, 0.1);
  filter.SetExcused(0.25);
  EXPECT_NEAR(filter.max_bw().mbps(), 80, 0.1);
  filter.SetExcused(0);  // what was excused then was the sender's own
  EXPECT_NEAR(filter.max_bw().mbps(), 60, 0.1);
}

// What it does not acknowledge while the rate is low looks like the path's own loss: UP over half of what is
// sent.
TEST(RateInvariants, AReceiverThatWithholdsAcksInExperimentsGainsNoMoreThanTwice) {
  for (const uint64_t of : {3, 5}) {
    WatchedFlow flow(
        {.rate = Bandwidth::Mbps(50), .rtt = milliseconds(20), .buffer_bdp = 0.25, .loss = 0.03});
    flow.Lose([&](uint64_t number) {
      return flow.bbr().policy().RateCeiling() != Bandwidth::Max() && number % of != 0;
    });
    flow.Run(seconds(30));
    EXPECT_LE(flow.largest_pacing(), 1.25 / (1 - PathLoss::kMaxExcused) * 1.02);
    EXPECT_EQ(flow.violation(), "");
  }
}

}  // namespace
}  // namespace longhaul::transport
