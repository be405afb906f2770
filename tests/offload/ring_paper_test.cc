// D1 to D4 of the ring with a slow node: the paper's rule and its simulation.
//
//   chunk 0:  A (begins) -> B (slow) -> C -> D (owner)       T = 3 us, Ttrans = 5 us + 8192 B / 100 Gbit/s
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "offload/ringsim/checker.h"
#include "offload/ringsim/figures.h"

namespace longhaul::offload::ringsim {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

constexpr Duration kT = microseconds(3);
const Duration kTrans = RingModel().transfer();
const Duration kHop = kT + kTrans;
constexpr Contributors kA = 1, kB = 2, kC = 4, kD = 8;

RingModel Paper(RingPolicy policy, double alpha = 1.8) {
  RingModel model;
  model.policy = policy;
  model.alpha = alpha;
  return model;
}

// B is slow in chunk 0.
RingOutcome RunSlow(const RingModel& model, Duration extra) {
  const RingOutcome outcome = RingSim(model).Run(RingLoad::Slow(model.nodes, 1, 0, extra));
  EXPECT_EQ(CheckExactlyOnce(model, outcome), "");
  return outcome;
}

// The derivation in the design: what the skip saves.
Duration Derived(double alpha, Duration extra) {
  const auto threshold = Duration(static_cast<int64_t>(3000 * alpha));
  if (kT + extra <= threshold) return Duration(0);
  if (kT + extra <= threshold + kTrans) return extra + 2 * kT - threshold;
  return kHop;
}

TEST(RingD1, IsReduceScatterAndAllGatherOfNMinusOneStepsAndOnlyTheFirstIsTouched) {
  EXPECT_EQ(kTrans, nanoseconds(5655));
  for (const uint32_t nodes : {2, 3, 4, 7, 16}) {
    RingModel model = Paper(RingPolicy::kOff);
    model.nodes = nodes;
    model.all_chunks = true;
    const RingOutcome scatter = RingSim(model).Run(RingLoad(nodes));
    EXPECT_EQ(CheckExactlyOnce(model, scatter), "");
    EXPECT_EQ(scatter.time, (nodes - 1) * kHop);
    EXPECT_EQ(scatter.at_owner.size(), nodes);
    EXPECT_EQ(scatter.sent.size(), size_t{nodes} * (nodes - 1));
    model.all_gather = true;
    EXPECT_EQ(RingSim(model).Run(RingLoad(nodes)).time, (nodes - 1) * kHop + (nodes - 1) * kTrans);
  }
  // Every node begins one chunk and owns one.
  Contributors owners = 0;
  for (uint32_t chunk = 0; chunk < 4; ++chunk) {
    const RingOrder order = MakeRingOrder(0xf, 0, chunk);
    EXPECT_EQ(order.nodes[0], chunk);
    owners |= Bit(order.nodes[order.owner()]);
  }
  EXPECT_EQ(owners, 0xfu);
  // The rule changes nothing of the all-gather.
  for (const RingPolicy policy : {RingPolicy::kOff, RingPolicy::kSeedSkip}) {
    RingModel model = Paper(policy);
    const Duration scatter = RunSlow(model, microseconds(8)).time;
    model.all_gather = true;
    EXPECT_EQ(RunSlow(model, microseconds(8)).time - scatter, 3 * kTrans);
  }
}

TEST(RingD2, ANodeIsSlowBeyondAlphaTAndItsSuccessorWaitsAlphaTPlusTransfer) {
  const RingOrder order = MakeRingOrder(0xf, 0, 0);
  Deadlines deadlines = Deadlines::Fixed(kT, 1.8, kTrans);
  EXPECT_EQ(deadlines.threshold(), nanoseconds(5400));
  const RingPlace place{order, 2, 2, RingPolicy::kSeedSkip, &deadlines, kTrans};
  const RingHop c(&place, Instant());
  EXPECT_EQ(c.NextTimeout(), Instant() + kHop + nanoseconds(5400) + kTrans);
  for (const double alpha : {1.2, 1.8, 2.5}) {
    const auto threshold = Duration(static_cast<int64_t>(3000 * alpha));
    const RingModel rule = Paper(RingPolicy::kSeedSkip, alpha);
    const RingModel off = Paper(RingPolicy::kOff, alpha);
    EXPECT_EQ(RunSlow(rule, threshold - kT).time, RunSlow(off, threshold - kT).time) << alpha;
    EXPECT_LT(RunSlow(rule, threshold - kT + nanoseconds(1)).time,
              RunSlow(off, threshold - kT + nanoseconds(1)).time);
  }
}

// What is sent under the rule, as sets, and when D has both.
void ExpectSkip(Duration extra, Duration done) {
  const RingOutcome outcome = RunSlow(Paper(RingPolicy::kSeedSkip), extra);
  std::vector<Contributors> sets;
  for (const Sent& message : outcome.sent) sets.push_back(message.says.set);
  // A to B, C's own to D, and B's sum, which skips C.
  EXPECT_THAT(sets, testing::UnorderedElementsAre(kA, kC, kA | kB));
  EXPECT_EQ(outcome.time, done);
  EXPECT_EQ(outcome.at_owner[0], (std::vector<uint8_t>{1, 1, 1, 1}));
}

TEST(RingD3, CSendsItsOwnPartBSkipsCAndDTakesThemInEitherOrder) {
  const Duration c_arrives = kHop + nanoseconds(5400) + 2 * kTrans;
  // B's comes first, and D waits for C's.
  ExpectSkip(microseconds(4), c_arrives);
  // C's comes first, and D waits for B's.
  ExpectSkip(microseconds(20), kHop + kT + microseconds(20) + kTrans);
  // Without the rule D has one sum of all.
  const RingOutcome off = RunSlow(Paper(RingPolicy::kOff), microseconds(20));
  std::vector<Contributors> sets;
  for (const Sent& message : off.sent) sets.push_back(message.says.set);
  EXPECT_THAT(sets, testing::UnorderedElementsAre(kA, kA | kB, kA | kB | kC));
  EXPECT_EQ(MakeRingOrder(0xf, 0, 0).All(), kA | kB | kC | kD);
}

TEST(RingD4, TheRingsTimeGrowsLinearlyWithTheDelay) {
  for (int us = 0; us <= 30; ++us) {
    EXPECT_EQ(RunSlow(Paper(RingPolicy::kOff), microseconds(us)).time, 3 * kHop + microseconds(us));
  }
}

TEST(RingD4, TheSavingIsWhatTheDerivationSaysForEveryAlpha) {
  for (int tenths = 11; tenths <= 30; ++tenths) {
    const double alpha = tenths / 10.0;
    for (Duration extra(0); extra <= microseconds(30); extra += nanoseconds(250)) {
      const Duration saved = RunSlow(Paper(RingPolicy::kOff, alpha), extra).time -
                             RunSlow(Paper(RingPolicy::kSeedSkip, alpha), extra).time;
      ASSERT_EQ(saved, Derived(alpha, extra)) << "alpha " << alpha << ", dT " << extra.count() << " ns";
    }
  }
}

TEST(RingD4, TheSavingRisesThenFallsAndIsIndependentOfAlphaAtLargeDelays) {
  const auto saving = [](double alpha, Duration extra) {
    return Saving(Paper(RingPolicy::kSeedSkip, alpha), RingLoad::Slow(4, 1, 0, extra));
  };
  for (const double alpha : {1.2, 1.5, 1.8, 2.0, 2.5}) {
    const Peak peak = LargestSaving(
        Paper(RingPolicy::kSeedSkip, alpha), [](Duration d) { return RingLoad::Slow(4, 1, 0, d); },
        microseconds(20), nanoseconds(50));
    const Duration derived = Duration(Saturated(3000 * (alpha - 1))) + kTrans;
    EXPECT_LE(std::abs((peak.at - derived).count()), 50) << alpha;
    EXPECT_GT(peak.saving, saving(alpha, peak.at - microseconds(2)));
    EXPECT_GT(peak.saving, saving(alpha, peak.at + microseconds(2)));
    // Large: all the same. Small: the larger alpha, the less.
    EXPECT_DOUBLE_EQ(saving(alpha, microseconds(20)), saving(1.8, microseconds(20)));
  }
  for (double alpha = 1.2; alpha < 2.2; alpha += 0.1) {
    EXPECT_GT(saving(alpha, microseconds(4)), saving(alpha + 0.1, microseconds(4))) << alpha;
  }
}

TEST(RingD4, TheLargestSavingIs25Point3PercentAtAlpha1Point8AndDelay8us) {
  const PaperFigures figures = ReproducePaper(RingModel());
  EXPECT_NEAR(figures.quoted, 0.253, 0.0005);
  EXPECT_NEAR(figures.at_model.saving, 0.253, 0.003);
  EXPECT_NEAR(static_cast<double>(figures.at_model.at.count()), 8055, 5);
  EXPECT_EQ(figures.ring_time.x.size(), 31u);
  EXPECT_EQ(figures.over_slow.size(), 5u);
  EXPECT_EQ(figures.over_alpha.size(), 6u);
  // The design's other two peaks: 26.9 % at alpha 1.2, 25.0 % at 2.0.
  const auto peak = [&](double alpha) {
    return LargestSaving(
        Paper(RingPolicy::kSeedSkip, alpha), [](Duration d) { return RingLoad::Slow(4, 1, 0, d); },
        microseconds(20), nanoseconds(5));
  };
  EXPECT_NEAR(peak(1.2).saving, 0.269, 0.0005);
  EXPECT_NEAR(peak(2.0).saving, 0.250, 0.0005);
}

}  // namespace
}  // namespace longhaul::offload::ringsim
