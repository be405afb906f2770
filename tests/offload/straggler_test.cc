// The decisions of one node of a ring: offload/straggler.
#include <gtest/gtest.h>

#include <deque>

#include "offload/straggler/demotion.h"
#include "offload/straggler/ring_hop.h"

namespace longhaul::offload {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Duration kHop = microseconds(10);
constexpr Duration kTransfer = microseconds(6);
constexpr Contributors kA = 1, kB = 2, kC = 4, kD = 8, kE = 16;

Instant At(int64_t us) { return Instant() + microseconds(us); }

// A hop takes 10 us, exactly.
Deadlines Taught(int rounds = 40) {
  Deadlines deadlines;
  for (int i = 0; i < rounds; ++i) {
    for (uint32_t position = 0; position < 8; ++position) deadlines.OnArrival(position, position * kHop);
  }
  return deadlines;
}

class RingHopTest : public testing::Test {
 protected:
  RingHop Hop(uint32_t position, RingPolicy policy) {
    const uint8_t node = order_.nodes[position];
    places_.push_back({order_, node, position, policy, &deadlines_, kTransfer});
    return RingHop(&places_.back(), Instant());
  }
  std::deque<RingPlace> places_;
  const RingOrder order_ = MakeRingOrder(0x1f, 0, 0);  // A B C D E; E owns
  Deadlines deadlines_ = Taught();
};

TEST(Deadlines, AreTheMeanAndTheLargerOfAFifthOfAHopAndFourDeviations) {
  const Deadlines steady = Taught();
  EXPECT_NEAR(static_cast<double>(steady.At(1).count()), 12'000, 50);
  EXPECT_NEAR(static_cast<double>(steady.At(4).count()), 42'000, 50)
      << "the slack does not grow along the ring";
  EXPECT_NEAR(static_cast<double>(steady.At(0).count()), 2'000, 50);
  Deadlines shaky;
  for (int i = 0; i < 400; ++i) shaky.OnArrival(1, microseconds(i % 2 == 0 ? 8 : 12));
  EXPECT_NEAR(static_cast<double>(shaky.At(1).count()), 18'000, 1'000);  // 10 + 4 x 2
}

TEST(Deadlines, AreFarAwayUntilTheyAreLearned) {
  Deadlines deadlines;
  for (uint32_t i = 0; i < Deadlines::kLeastSamples; ++i) {
    EXPECT_EQ(deadlines.At(1), milliseconds(100));
    deadlines.OnArrival(1, kHop);
  }
  EXPECT_LT(deadlines.At(1), milliseconds(1));
}

// The wait of seed_skip: alpha T + Ttrans after the node before has begun.
TEST(Deadlines, AToldWaitCountsFromWhenTheNodeBeforeBegins) {
  Deadlines deadlines = Taught();
  deadlines.SetWait(microseconds(15));
  EXPECT_NEAR(static_cast<double>(deadlines.At(1).count()), 15'000, 50);
  EXPECT_NEAR(static_cast<double>(deadlines.At(3).count()), 35'000, 50);
}

TEST(Deadlines, LeaveTimeForClocksThatAreReadLate) {
  Deadlines deadlines(Deadlines::kFirst, microseconds(100));
  for (int i = 0; i < 40; ++i) {
    for (uint32_t position = 0; position < 8; ++position) deadlines.OnArrival(position, position * kHop);
  }
  EXPECT_NEAR(static_cast<double>(deadlines.At(0).count()), 100'000, 50);
  EXPECT_NEAR(static_cast<double>((deadlines.At(3) - deadlines.At(2)).count()), 35'000,
              50);  // a hop and 25 us
}

TEST(Deadlines, HaveABoundWhateverIsMissed) {
  Deadlines deadlines = Taught();
  for (int i = 0; i < 1000; ++i) deadlines.OnTimeout(1);
  EXPECT_EQ(deadlines.At(1), LearnedWait::kMost);
}

TEST(Deadlines, FollowAPathThatHasBecomeSlower) {
  Deadlines deadlines = Taught();
  int rounds = 0;
  while (deadlines.At(1) < 20 * kHop && rounds < 100) {
    deadlines.OnTimeout(1);
    ++rounds;
  }
  EXPECT_LT(rounds, 20);
  // One in ten does not move them much.
  Deadlines seldom = Taught();
  for (int i = 0; i < 500; ++i) i % 10 == 0 ? seldom.OnTimeout(1) : seldom.OnArrival(1, kHop);
  EXPECT_LT(seldom.At(1), kHop + kHop / 2);
}

TEST_F(RingHopTest, WaitsForAllBeforeItThenSendsToTheNext) {
  RingHop c = Hop(2, RingPolicy::kCascade);
  EXPECT_EQ(c.OnOwn(At(0)), Arrival::kMerge);
  EXPECT_FALSE(c.Due(At(20)));
  EXPECT_EQ(c.OnPartial(At(20), 1, {kA | kB, 0}), Arrival::kMerge);
  ASSERT_TRUE(c.Due(At(20)));
  EXPECT_EQ(c.Begin(At(20)).set, kA | kB | kC);
  EXPECT_FALSE(c.Due(At(20))) << "once";
  EXPECT_EQ(c.Close(At(24)), 3u);
  EXPECT_EQ(c.late(), 0u);
}

TEST_F(RingHopTest, GivesUpAtItsDeadlineAndNamesWhoKeptItWaiting) {
  RingHop c = Hop(2, RingPolicy::kCascade);
  (void)c.OnOwn(At(0));
  EXPECT_FALSE(c.Due(At(21)));
  EXPECT_LE(c.NextTimeout(), At(23));
  ASSERT_TRUE(c.Due(At(23)));
  EXPECT_EQ(c.Begin(At(23)).set, kC);
  EXPECT_EQ(c.late(), kB);
  EXPECT_TRUE(c.NextTimeout().IsInfinite());
  RingHop off = Hop(2, RingPolicy::kOff);
  (void)off.OnOwn(At(0));
  EXPECT_FALSE(off.Due(At(1'000'000)));
  EXPECT_TRUE(off.NextTimeout().IsInfinite());
}

TEST_F(RingHopTest, ALateSumGoesToTheFirstNodeThatStillWaits) {
  RingHop b = Hop(1, RingPolicy::kCascade);
  (void)b.OnOwn(At(0));
  (void)b.OnPartial(At(10), 0, {kA, 0});
  (void)b.Begin(At(10));
  EXPECT_EQ(b.Aim(At(14)), 2u);  // C gives up at 22, and a transfer takes 6
  EXPECT_EQ(b.Aim(At(17)), 3u);  // D at 32
  EXPECT_EQ(b.Aim(At(30)), 4u);  // the owner waits for ever
  EXPECT_EQ(b.Aim(At(1000)), 4u);
}

TEST_F(RingHopTest, WhoseSumGoesPastANodeIsLate) {
  RingHop c = Hop(2, RingPolicy::kCascade);
  c.OnGoneOn(0, 0);  // it says that it has sent
  EXPECT_EQ(c.late(), 0u);
  c.OnGoneOn(1, Bit(0));
  EXPECT_EQ(c.late(), Bit(1));
}

TEST_F(RingHopTest, WhatComesAfterItHasSentIsPassedOnUnmerged) {
  RingHop c = Hop(2, RingPolicy::kCascade);
  (void)c.OnOwn(At(0));
  (void)c.Begin(At(23));
  // Also while the sum is being made: it is not in what Begin said.
  EXPECT_EQ(c.OnPartial(At(24), 1, {kA | kB, 0}), Arrival::kPassOn);
  EXPECT_EQ(c.have(), kC);
  EXPECT_EQ(c.OnPartial(At(25), 1, {kA | kB, 0}), Arrival::kDuplicate);
}

TEST_F(RingHopTest, OnlyDisjointSetsAreAdded) {
  EXPECT_EQ(Meet(kA | kB, kC), Meeting::kDisjoint);
  EXPECT_EQ(Meet(kA | kB, kB), Meeting::kDuplicate);
  EXPECT_EQ(Meet(kA | kB, kB | kC), Meeting::kOverlap);
  RingHop e = Hop(4, RingPolicy::kCascade);
  (void)e.OnOwn(At(0));
  EXPECT_EQ(e.OnPartial(At(30), 1, {kA | kB, 0}), Arrival::kMerge);
  EXPECT_EQ(e.OnPartial(At(31), 1, {kA | kB, 0}), Arrival::kDuplicate);
  EXPECT_EQ(e.OnPartial(At(32), 3, {kB | kC, 0}), Arrival::kOverlap);
  EXPECT_EQ(e.OnPartial(At(33), 3, {kC | Bit(20), 0}), Arrival::kNoPlace) << "a node that is not of the ring";
  EXPECT_EQ(e.OnOwn(At(34)), Arrival::kDuplicate);
  EXPECT_FALSE(e.Complete());
  EXPECT_EQ(e.OnPartial(At(40), 3, {kC | kD, 0}), Arrival::kMerge);
  EXPECT_TRUE(e.Complete());
  EXPECT_EQ(e.have(), kA | kB | kC | kD | kE);
  EXPECT_FALSE(e.Due(At(1'000'000))) << "an owner sends no sum on";
}

TEST_F(RingHopTest, ANodeWhoseOwnPartIsLateGoesOnWithoutIt) {
  RingHop b = Hop(1, RingPolicy::kSelfSkip);
  EXPECT_EQ(b.OnPartial(At(10), 0, {kA, 0}), Arrival::kMerge);
  EXPECT_FALSE(b.Due(At(11)));
  ASSERT_TRUE(b.Due(At(13)));
  const Partial says = b.Begin(At(13));
  EXPECT_EQ(says.set, kA);
  EXPECT_EQ(says.missing, kB);
  EXPECT_EQ(b.Close(At(13)), 2u);
  EXPECT_EQ(b.OnOwn(At(50)), Arrival::kPassOn) << "to the owner";
  // The next one does not wait for B, and B alone is late.
  RingHop c = Hop(2, RingPolicy::kSelfSkip);
  (void)c.OnOwn(At(0));
  EXPECT_EQ(c.OnPartial(At(19), 1, says), Arrival::kMerge);
  EXPECT_TRUE(c.Due(At(19)));
  EXPECT_EQ(c.Begin(At(19)).missing, kB);
  EXPECT_EQ(c.late(), kB);
  // Without that policy it keeps what it has until its own part is here.
  RingHop cascade = Hop(1, RingPolicy::kCascade);
  (void)cascade.OnPartial(At(10), 0, {kA, 0});
  EXPECT_FALSE(cascade.Due(At(1000)));
}

TEST_F(RingHopTest, ABeginnerThatIsLateSaysSo) {
  RingHop a = Hop(0, RingPolicy::kSelfSkip);
  ASSERT_TRUE(a.Due(At(3)));
  const Partial says = a.Begin(At(3));
  EXPECT_EQ(says.set, 0u);
  EXPECT_EQ(says.missing, kA);
  RingHop b = Hop(1, RingPolicy::kSelfSkip);
  (void)b.OnOwn(At(0));
  EXPECT_FALSE(b.Due(At(9)));
  EXPECT_EQ(b.OnPartial(At(9), 0, says), Arrival::kNotice);
  EXPECT_TRUE(b.Due(At(9)));
}

TEST(Demotion, MakesALeafOfWhoIsLateAgainAndAgain) {
  Demotion demotion;
  demotion.OnRound(0xf, kB);
  demotion.OnRound(0xf, kB);
  demotion.OnRound(0xf, 0);
  for (uint32_t i = 1; i < Demotion::kRounds; ++i) demotion.OnRound(0xf, kB);
  EXPECT_EQ(demotion.leaves(), 0u) << "not running";
  demotion.OnRound(0xf, kB);
  EXPECT_EQ(demotion.leaves(), kB);
  // On trial after its time; one late round is enough now, and the time is twice as long.
  for (uint32_t i = 0; i < Demotion::kProbation; ++i) demotion.OnRound(0xf, 0);
  EXPECT_EQ(demotion.leaves(), 0u);
  demotion.OnRound(0xf, kB);
  EXPECT_EQ(demotion.leaves(), kB);
  for (uint32_t i = 0; i < Demotion::kProbation; ++i) demotion.OnRound(0xf, 0);
  EXPECT_EQ(demotion.leaves(), kB);
}

TEST(Demotion, LeavesARingOfTwo) {
  Demotion demotion;
  for (int i = 0; i < 10; ++i) demotion.OnRound(0xf, kA | kB | kC | kD);
  EXPECT_EQ(std::popcount(demotion.leaves()), 2);
}

TEST(RingOrder, TurnsWithTheChunkAndPassesLeavesOver) {
  const RingOrder order = MakeRingOrder(0x1f, kC, 1);
  ASSERT_EQ(order.size, 4u);
  EXPECT_EQ(order.nodes[0], 1);
  EXPECT_EQ(order.nodes[1], 3);
  EXPECT_EQ(order.nodes[2], 4);
  EXPECT_EQ(order.nodes[3], 0);
  EXPECT_EQ(order.Before(2), kB | kD);
  EXPECT_EQ(order.All(), 0x1fu);
  EXPECT_EQ(order.home, 0);
  // The owner is the leaf: the one before it owns.
  const RingOrder owned = MakeRingOrder(0x1f, kA, 1);
  EXPECT_EQ(owned.nodes[owned.owner()], 4);
  EXPECT_EQ(owned.home, 0);
}

}  // namespace
}  // namespace longhaul::offload
