// A4: at the start of each packet-transmission window the initial sending rate is computed from the estimate.
#include <gtest/gtest.h>

#include <vector>

#include "tests/rate/watched_flow.h"

namespace longhaul::transport {
namespace {

using sim::FlowOptions;
using sim::kDatagram;
using sim::LinkOptions;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr LinkOptions kPath{.rate = Bandwidth::Mbps(100), .rtt = milliseconds(40), .buffer_bdp = 2};
constexpr double kMargin = BbrPolicy::kPacingMargin;

// A window's first packet: nothing else is in flight.
struct First {
  BbrState state;
  double pacing;
  double estimate;
};

std::vector<First> FirstPackets(WatchedFlow* flow, Duration time) {
  std::vector<First> firsts;
  flow->Lose([&](uint64_t) {
    if (flow->model().event.in_flight == kDatagram) {
      firsts.push_back({flow->state(), flow->pacing(), flow->snapshot().bandwidth.mbps()});
    }
    return false;
  });
  flow->Run(time);
  flow->Lose({});
  return firsts;
}

TEST(A4InitialRate, EveryWindowBeginsAtTheEstimateWhateverTheCycleWasDoing) {
  FlowOptions windows;
  windows.round_packets = 400;  // a little more than a round trip
  windows.round_gap = milliseconds(150);
  WatchedFlow flow(kPath, windows);
  ASSERT_TRUE(flow.RunTo(BbrState::kProbeBwCruise));
  int cruising = 0;
  const std::vector<First> firsts = FirstPackets(&flow, seconds(20));
  for (const First& first : firsts) {
    SCOPED_TRACE(BbrStateName(first.state));
    EXPECT_NEAR(first.pacing, first.estimate * kMargin, 0.5);
    EXPECT_NEAR(first.estimate, 100, 2);
    cruising += first.state == BbrState::kProbeBwCruise;
  }
  EXPECT_GE(firsts.size(), 60u);
  EXPECT_LT(cruising, static_cast<int>(firsts.size()) - 5) << "some began in UP or DOWN";
}

TEST(A4InitialRate, TheNextWindowBeginsAtWhatWasLearnedWhileTheApplicationHeldBack) {
  WatchedFlow flow(kPath);
  flow.Run(seconds(3));
  flow.simulation().SetAppRate(0, Bandwidth::Mbps(60));
  flow.simulation().SetRate(Bandwidth::Mbps(40));  // no longer what the application asks for
  flow.Run(seconds(5));
  flow.simulation().SetPaused(0, true);
  flow.Run(milliseconds(200));
  flow.simulation().SetAppRate(0, Bandwidth::Zero());
  flow.simulation().SetPaused(0, false);
  const std::vector<First> firsts = FirstPackets(&flow, milliseconds(20));
  ASSERT_EQ(firsts.size(), 1u);
  EXPECT_NEAR(firsts.front().pacing, 40, 1.5);
}

// Several tensors' windows start one after the other: the first packet after a pause leaves at the estimate
// itself, the next window at the state's gain times it, without waiting for an ACK.
TEST(A4InitialRate, AWindowThatStartsWithinTheRoundTripTakesUpTheCycle) {
  FlowOptions windows;
  windows.round_packets = 400;  // UP lasts longer than one of them
  windows.round_gap = milliseconds(150);
  WatchedFlow flow(kPath, windows);
  bool first = false;
  flow.Lose([&](uint64_t) {
    first |= flow.model().event.in_flight == kDatagram && flow.state() == BbrState::kProbeBwUp;
    return false;
  });
  ASSERT_TRUE(flow.RunUntil([&] { return first; }, seconds(30)));
  const double estimate = flow.snapshot().bandwidth.mbps();
  EXPECT_NEAR(flow.pacing(), estimate * kMargin, 0.5);
  flow.simulation().flow(0).controller().OnWindowStart(flow.now());
  EXPECT_NEAR(flow.pacing(), estimate * kMargin * Bbr::kProbeUpPacingGain, 0.5);
}

// The target is computed anew as well: what the job says now counts from the next window on.
TEST(A4InitialRate, AWindowBeginsWithATargetOfTheJobsPresentBudget) {
  LinkOptions shallow{.rate = Bandwidth::Mbps(100), .rtt = milliseconds(40)};
  shallow.buffer = ByteCount(62'500);  // 5 ms
  FlowOptions wide;
  wide.rate.loss_limits.budget = 0.05;
  WatchedFlow flow(shallow, wide);
  ASSERT_TRUE(flow.RunUntil([&] { return flow.snapshot().target_loss > 0.045; }));
  ASSERT_EQ(flow.snapshot().fit.basis, "curves");
  RateController& controller = flow.simulation().flow(0).controller();
  controller.SetLossLimits({.halve_threshold = 0.3, .budget = 0.015});
  controller.OnWindowStart(flow.now());
  EXPECT_LE(flow.snapshot().target_loss, flow.snapshot().fit.floor + 0.015 + 0.0101);
}

}  // namespace
}  // namespace longhaul::transport
