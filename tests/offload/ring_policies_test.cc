// What the product's policies save, and that every part is counted once whatever happens.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "offload/ringsim/checker.h"
#include "offload/ringsim/figures.h"
#include "offload/ringsim/random_runs.h"

namespace longhaul::offload::ringsim {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

RingModel Model(RingPolicy policy, uint32_t nodes, double alpha = 0) {
  RingModel model;
  model.nodes = nodes;
  model.policy = policy;
  model.alpha = alpha;
  model.all_chunks = true;
  return model;
}

double Of(const std::vector<Row>& rows, const std::string& what, double Row::*figure) {
  for (const Row& row : rows) {
    if (row.what == what) return row.*figure;
  }
  ADD_FAILURE() << "no row " << what;
  return -1;
}
double PeakOf(const std::vector<Row>& rows, const std::string& what) {
  for (const Row& row : rows) {
    if (row.what == what) return row.peak.saving;
  }
  ADD_FAILURE() << "no row " << what;
  return -1;
}

TEST(RingPage, WhatThe25PercentHide) {
  const std::vector<Row> rows = WhatItHides(RingModel());
  EXPECT_NEAR(Of(rows, "reduce-scatter of one chunk", &Row::at_quoted), 0.253, 0.001);
  EXPECT_NEAR(Of(rows, "all four chunks", &Row::at_quoted), 0.236, 0.001);
  EXPECT_NEAR(PeakOf(rows, "all four chunks, one reduce engine a node"), 0.179, 0.001);
  EXPECT_NEAR(Of(rows, "one chunk, with its all-gather", &Row::at_quoted), 0.169, 0.001);
  EXPECT_EQ(PeakOf(rows, "all four chunks, slow in every reduce"), 0);
  EXPECT_NEAR(Of(rows, "one chunk, 8 nodes", &Row::at_quoted), 0.125, 0.001);
  EXPECT_NEAR(Of(rows, "one chunk, 16 nodes", &Row::at_quoted), 0.0625, 0.001);
  EXPECT_NEAR(Of(rows, "one chunk, 32 nodes", &Row::at_quoted), 0.031, 0.001);
}

TEST(RingPage, CascadeHidesADelayBehindTheRestOfTheRing) {
  const auto slow = [](uint32_t nodes) {
    return [nodes](Duration d) { return RingLoad::Slow(nodes, 1, 0, d); };
  };
  EXPECT_GT(LargestSaving(Model(RingPolicy::kCascade, 8), slow(8), microseconds(60), nanoseconds(500)).saving,
            0.40);
  // Of one slow node among four it does what the paper's rule does.
  EXPECT_GT(LargestSaving(Model(RingPolicy::kCascade, 4), slow(4), microseconds(20), nanoseconds(250)).saving,
            0.245);
}

TEST(RingPage, SelfSkipHidesALateHost) {
  const auto late = [](uint32_t nodes) {
    return [nodes](Duration d) { return RingLoad::LateHost(nodes, 1, d); };
  };
  for (const uint32_t nodes : {4, 8}) {
    const auto saving = [&](RingPolicy policy) {
      return LargestSaving(Model(policy, nodes), late(nodes), microseconds(80), nanoseconds(500)).saving;
    };
    EXPECT_GT(saving(RingPolicy::kSelfSkip), 0.40) << nodes;
    EXPECT_GT(saving(RingPolicy::kSelfSkip), saving(RingPolicy::kCascade) + 0.015) << nodes;
  }
}

TEST(RingPage, ALeafsSlowReducesCostNothing) {
  const auto saving = [](RingPolicy policy, int us) {
    return Saving(Model(policy, 4), RingLoad::AlwaysSlow(4, 1, microseconds(us)));
  };
  EXPECT_LT(saving(RingPolicy::kCascade, 8), 0.01);
  EXPECT_NEAR(saving(RingPolicy::kLeafDemote, 6), 0.45, 0.02);
  EXPECT_NEAR(saving(RingPolicy::kLeafDemote, 90), 0.85, 0.01);
}

// A fresh seed in each run; `longhaul sim ring --runs 10000` is the rest.
TEST(RingRandom, NoRunIsStuckAndEveryPartIsCountedOnce) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  for (const RingPolicy policy : {RingPolicy::kCascade, RingPolicy::kSelfSkip, RingPolicy::kLeafDemote}) {
    RandomTally tally;
    for (uint64_t run = 0; run < 200 / LONGHAUL_SLOWNESS; ++run) RunAnything(seed + run, policy, &tally);
    EXPECT_EQ(tally.stuck, 0u) << tally.first;
    EXPECT_EQ(tally.wrong, 0u) << tally.first;
  }
}

// Of the same rings in each run: where more than a third of all waits end in a time-out the deadlines grow,
// and one such ring in a hundred, which takes a deadline of up to 100 ms, outweighs a few dozen others.
TEST(RingRandom, PoliciesSaveTimeOfWhateverIsDrawn) {
  for (const RingPolicy policy : {RingPolicy::kCascade, RingPolicy::kSelfSkip, RingPolicy::kLeafDemote}) {
    RandomTally tally;
    for (uint64_t seed = 1; seed <= 25; ++seed) RunAnything(seed, policy, &tally);
    EXPECT_GT(tally.saving(), 0.25) << static_cast<int>(policy);
  }
}

TEST(RingRandom, ThePapersRuleWedgesBeyondItsCase) {
  RandomTally four;
  RandomTally eight;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    RunSlowReduces(seed, 4, 0.05, RingPolicy::kSeedSkip, 1.8, &four);
    RunSlowReduces(seed, 8, 0.05, RingPolicy::kSeedSkip, 1.8, &eight);
  }
  EXPECT_EQ(four.stuck, 0u) << four.first;
  EXPECT_GT(eight.stuck, 10u);
  EXPECT_EQ(eight.wrong, 0u) << "it loses sums, and adds none twice";
}

// Among four, too: A and B are slow by less than alpha T each, C has given up when their sum comes, and B
// does not know.
TEST(RingRandom, ThePapersRuleWedgesOfTwoNodesThatAreALittleSlow) {
  for (const RingPolicy policy : {RingPolicy::kSeedSkip, RingPolicy::kCascade}) {
    RingModel model = Model(policy, 4, 1.8);
    model.all_chunks = false;
    RingLoad load = RingLoad::Slow(4, 0, 0, microseconds(2));
    load.slow[4] = microseconds(2);
    EXPECT_EQ(RingSim(model).Run(load).stuck, policy == RingPolicy::kSeedSkip);
  }
}

TEST(RingRandom, ASeedIsOneRun) {
  RandomTally a;
  RandomTally b;
  RunAnything(7, RingPolicy::kSelfSkip, &a);
  RunAnything(7, RingPolicy::kSelfSkip, &b);
  EXPECT_EQ(a.time, b.time);
  EXPECT_GT(a.time, 0);
}

// The checker can fail, in each of its ways.
TEST(RingChecker, RefusesWhatIsWrong) {
  const RingModel model = Model(RingPolicy::kCascade, 4);
  const RingOutcome good = RingSim(model).Run(RingLoad(4));
  ASSERT_EQ(CheckExactlyOnce(model, good), "");
  RingOutcome twice = good;
  twice.at_owner[2][1] = 2;
  EXPECT_EQ(CheckExactlyOnce(model, twice), "chunk 2 has the part of node 1 2 times");
  RingOutcome lost = good;
  lost.at_owner[0][3] = 0;
  EXPECT_EQ(CheckExactlyOnce(model, lost), "chunk 0 has the part of node 3 0 times");
  RingOutcome lie = good;
  lie.sent[0].says.set ^= 8;
  EXPECT_NE(CheckExactlyOnce(model, lie), "");
  RingOutcome none = good;
  none.at_owner[1].clear();
  EXPECT_EQ(CheckExactlyOnce(model, none), "chunk 1 has no result");
  RingOutcome few = good;
  few.at_owner.pop_back();
  EXPECT_NE(CheckExactlyOnce(model, few), "");
  RingOutcome stuck = good;
  stuck.stuck = true;
  EXPECT_NE(CheckExactlyOnce(model, stuck), "");
}

}  // namespace
}  // namespace longhaul::offload::ringsim
