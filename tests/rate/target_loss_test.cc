// A6: the target loss is computed by least squares from what the rounds have shown, with what the job
// affords, and the controller goes by it; also where grants set the rate.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/rate/watched_flow.h"
#include "tests/sim/push_pull_rounds.h"
#include "transport/core/rate/target_loss_fit.h"

namespace longhaul::transport {
namespace {

using sim::FlowOptions;
using sim::LinkOptions;
using std::chrono::milliseconds;
using std::chrono::seconds;

LinkOptions Shallow(double ms) {
  LinkOptions link{.rate = Bandwidth::Mbps(100), .rtt = milliseconds(40)};
  link.buffer = link.rate * Duration(static_cast<int64_t>(ms * 1e6));
  return link;
}

FlowOptions WithBudget(double budget) {
  FlowOptions flow;
  flow.rate.loss_limits.budget = budget;
  return flow;
}

TEST(A6TargetLoss, InAShallowBufferTheFitSaysSomethingElseThanTwoPercent) {
  for (const double ms : {3.0, 5.0, 8.0}) {
    SCOPED_TRACE(ms);
    WatchedFlow flow(Shallow(ms));
    flow.Run(seconds(20));
    const RateSnapshot snapshot = flow.snapshot();
    EXPECT_EQ(snapshot.fit.state, "fitted");
    EXPECT_EQ(snapshot.fit.basis, "curves");
    EXPECT_NEAR(snapshot.fit.capacity.mbps(), 100, 5);
    EXPECT_NEAR(snapshot.fit.floor, 0, 0.02);
    EXPECT_GE(snapshot.target_loss, snapshot.fit.floor + 0.03);
  }
}

TEST(A6TargetLoss, TheTargetKeepsToTheJobsBudget) {
  double last = 0;
  for (const double budget : {0.01, 0.025, 0.045}) {
    SCOPED_TRACE(budget);
    WatchedFlow flow(Shallow(5), WithBudget(budget));
    flow.Run(seconds(20));
    const RateSnapshot snapshot = flow.snapshot();
    ASSERT_EQ(snapshot.fit.basis, "curves");
    const double margin = snapshot.target_loss - snapshot.fit.floor;
    EXPECT_LE(margin, std::max(budget, TargetLossFit::kHeadroom) + 0.005);
    EXPECT_GE(snapshot.target_loss, last + 0.005);
    last = snapshot.target_loss;
  }
}

TEST(A6TargetLoss, TheBudgetIsWhatTheWindowsSemanticsAfford) {
  JobSpec job;
  job.high_share = 0.2;
  job.bubble_threshold = 0.1;
  job.halve_threshold = 0.4;
  EXPECT_DOUBLE_EQ(LossLimits::Of(job).budget, 0.08);
  EXPECT_DOUBLE_EQ(LossLimits::Of(job).halve_threshold, 0.4);
  job.high_share = 1;  // everything is repaired: nothing on top is tolerated
  EXPECT_DOUBLE_EQ(LossLimits::Of(job).budget, 0);
}

// Every twentieth packet is lost for a while, on a path that is known to lose none. Below the fitted target
// that is no reason to slow down; for the job that affords less it is.
TEST(A6TargetLoss, TheControllerGoesByTheTarget) {
  Duration slow[2] = {Duration(0), Duration(0)};
  for (const bool wide : {false, true}) {
    WatchedFlow flow(Shallow(5), WithBudget(wide ? 0.08 : 0));
    flow.Run(seconds(15));
    ASSERT_TRUE(flow.RunTo(BbrState::kProbeBwUp));
    ASSERT_TRUE(flow.RunTo(BbrState::kProbeBwCruise));
    flow.Run(milliseconds(100));
    flow.Lose([](uint64_t number) { return number % 20 == 0; });
    Instant last = flow.now();
    flow.Run(milliseconds(450), [&] {
      if (flow.pacing() < 97) slow[wide] += flow.now() - last;
      last = flow.now();
    });
  }
  EXPECT_GE(slow[false], milliseconds(200));
  EXPECT_EQ(slow[true], Duration(0));
}

// Whole cores: a server's grants set the rate of every worker.
// The mean of three seeds: of one, the capacity is 24.4 to 28.9 Mbit/s.
TEST(A6TargetLoss, GrantedWorkersFeedTheFitToo) {
  constexpr uint64_t kSeeds = 3;
  constexpr size_t kFits = 32;  // of a seed
  for (const double loss : {0.0, 0.05}) {
    SCOPED_TRACE(loss);
    double capacity = 0;
    double floor = 0;
    uint64_t without = 0;  // fits that had too few samples just then
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      longhaul::sim::PushPullOptions options;
      options.seed = seed;
      options.workers = 4;
      options.rounds = 8;
      options.warmup = 12;
      options.bytes = {1'000'000};
      options.gap = milliseconds(50);
      options.link.rate = Bandwidth::Mbps(100);
      options.link.delay = milliseconds(20);
      options.link.queue_time = milliseconds(40);
      options.link.loss = loss;
      const longhaul::sim::PushPullResult result = RunPushPull(options);
      ASSERT_EQ(result.failure, "");
      ASSERT_EQ(result.fits.size(), kFits);
      for (const longhaul::sim::PushPullFit& fit : result.fits) {
        if (fit.state != "granted" && fit.state != "fitted") ++without;
        capacity += fit.capacity.mbps() / static_cast<double>(kSeeds * kFits);
        floor += fit.floor / static_cast<double>(kSeeds * kFits);
        EXPECT_GT(fit.target, fit.floor);
      }
    }
    EXPECT_LE(without, loss > 0 ? kSeeds * kFits / 32 : 0);
    EXPECT_NEAR(floor, loss, 0.01);
    EXPECT_NEAR(capacity, 25, 25 * 0.15) << "a quarter of the link";
  }
}

}  // namespace
}  // namespace longhaul::transport
