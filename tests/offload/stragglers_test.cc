// Late nodes of a ring: which nodes go on without them, and that each node is in the result once all the
// same.
#include <gtest/gtest.h>

#include "offload/engine/straggler.h"
#include "tests/offload/all_reduce.h"

namespace longhaul::offload {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Four nodes; `late` posts 5 ms after the others, in `rounds` messages after one that teaches the deadlines.
struct Late {
  Late(StragglerPolicy policy, std::vector<uint8_t> late, uint32_t rounds = 1, LinkFaults faults = {})
      : site({.nodes = 4, .ranks = 1, .faults = faults, .seed = 11}) {
    site.Configure({.nodes = 0b1111, .policy = policy, .skip_after = microseconds(200)});
    for (uint32_t mid = 0; mid <= rounds; ++mid) {
      ranks.push_back(std::make_unique<AllRanks<int32_t>>(
          site, 256 * 100,
          [mid](uint8_t n, uint8_t, size_t i) { return static_cast<int32_t>(i * (n + 3) + mid); }));
      AllRanks<int32_t>& message = *ranks.back();
      message.request.mid = mid;
      for (uint8_t node = 0; node < 4; ++node) {
        const bool waits = mid > 0 && std::ranges::count(late, node) > 0;
        if (!waits) message.Post(node, 0, mid);
      }
      site.RunFor(milliseconds(5));
      for (uint8_t node = 0; mid > 0 && node < 4; ++node) {
        if (std::ranges::count(late, node) > 0) message.Post(node, 0, mid);
      }
      site.RunFor(milliseconds(400));
      EXPECT_TRUE(message.AllEnded(WorkStatus::kSuccess, mid)) << mid;
      EXPECT_TRUE(message.AllReceived(message.Expected())) << mid;
    }
    EXPECT_EQ(site.SegsInUse(), 0u);
  }
  OffloadStats Sum() {
    OffloadStats sum;
    for (uint8_t node = 0; node < 4; ++node) {
      const OffloadStats s = site.engine(node).stats();
      sum.skips += s.skips;
      sum.redirects += s.redirects;
      sum.demotions += s.demotions;
      sum.overlaps_refused += s.overlaps_refused;
    }
    return sum;
  }

  VirtualSite site;
  std::vector<std::unique_ptr<AllRanks<int32_t>>> ranks;
};

TEST(OffloadStragglers, OffWaits) {
  Late run(StragglerPolicy::kOff, {1});
  EXPECT_EQ(run.Sum().skips, 0u);
}

// A B C D with B late: C goes on, B aims at D, which adds both.
TEST(OffloadStragglers, CascadeGoesOnAndTheLateSumFollows) {
  Late run(StragglerPolicy::kCascade, {1});
  const OffloadStats sum = run.Sum();
  EXPECT_GT(sum.skips, 20u);  // of 100 segs, those in which a node lies between node 1 and the owner
  EXPECT_GT(sum.redirects, 20u);
  EXPECT_EQ(sum.overlaps_refused, 0u);
}

TEST(OffloadStragglers, CascadeWithSeveralLateNodes) {
  for (const std::vector<uint8_t>& late : std::vector<std::vector<uint8_t>>{{0, 1}, {0, 2}, {1, 2, 3}}) {
    Late run(StragglerPolicy::kCascade, late);
    EXPECT_GT(run.Sum().skips, 0u);
    EXPECT_EQ(run.Sum().overlaps_refused, 0u);
  }
}

// Every notice is lost: the late sum goes to who has gone on, and is sent farther by the answer.
TEST(OffloadStragglers, NothingDependsOnANotice) {
  VirtualSite site({.nodes = 3, .ranks = 1});
  site.Configure({.nodes = 0b111, .policy = StragglerPolicy::kSeedSkip, .skip_after = microseconds(100)});
  AllRanks<int32_t> ranks(site, 256, Small);  // 0 -> 1 -> 2
  ranks.Post(1, 0);
  ranks.Post(2, 0);
  site.filter = [](uint8_t, uint8_t, std::vector<uint8_t>& datagram) {
    return Parse(datagram)->header.kind != PacketKind::kRedirect;
  };
  site.RunFor(milliseconds(5));
  EXPECT_EQ(site.engine(1).stats().skips, 1u);
  site.filter = nullptr;
  ranks.Post(0, 0);
  site.RunFor(milliseconds(50));
  EXPECT_EQ(site.engine(0).stats().redirects, 1u);
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
}

TEST(OffloadStragglers, ARedirectOfAStrangerOrBackwardsChangesNothing) {
  VirtualSite site({.nodes = 4, .ranks = 1});
  site.Configure({.nodes = 0b1111});
  AllRanks<int32_t> ranks(site, 256, Small);  // 0 -> 1 -> 2 -> 3
  for (const uint8_t node : std::initializer_list<uint8_t>{1, 2, 3}) ranks.Post(node, 0);
  site.RunFor(milliseconds(1));
  ranks.Post(0, 0);
  bool forged = false;
  site.filter = [&](uint8_t from, uint8_t, std::vector<uint8_t>& datagram) {
    Header h = Parse(datagram)->header;
    if (from != 1 || h.kind != PacketKind::kPartial || forged) return true;
    forged = true;
    h.kind = PacketKind::kRedirect;
    h.contributors = 0;
    std::vector<uint8_t> packet(kHeaderBytes);
    for (const auto& [source, root] : {std::pair{3, 3}, {2, 1}, {2, 0}, {2, 2}, {2, 9}}) {
      h.source = static_cast<uint8_t>(source);
      h.root = static_cast<uint8_t>(root);
      Encapsulate(h, {}, packet);
      site.Inject(1, packet);
    }
    return true;
  };
  site.RunFor(milliseconds(50));
  EXPECT_TRUE(forged);
  EXPECT_EQ(site.engine(1).stats().redirects, 0u);
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
}

TEST(OffloadStragglers, SeedSkipSkipsOnceAndThenWaits) {
  Late run(StragglerPolicy::kSeedSkip, {1});
  EXPECT_GT(run.Sum().skips, 20u);
}

TEST(OffloadStragglers, LeafDemoteDoesNotWaitForWhoIsAlwaysLate) {
  Late run(StragglerPolicy::kLeafDemote, {2}, 4);
  EXPECT_GT(run.Sum().demotions, 50u);
  EXPECT_EQ(run.Sum().overlaps_refused, 0u);
}

TEST(OffloadStragglers, LossAndLateNodesTogether) {
  for (const StragglerPolicy policy : {StragglerPolicy::kCascade, StragglerPolicy::kLeafDemote}) {
    Late run(policy, {1, 3}, 3, {.loss = 0.1, .duplication = 0.1, .reordering = 0.2, .stale = 0.1});
    EXPECT_GT(run.Sum().skips, 0u);
  }
}

// Sums in one order whichever node is late.
TEST(OffloadStragglers, DeterministicMessagesWait) {
  VirtualSite site({.nodes = 4, .ranks = 2});
  site.Configure({.nodes = 0b1111, .policy = StragglerPolicy::kSeedSkip, .skip_after = microseconds(50)});
  AllRanks<float> ranks(site, 5000, Fraction);
  ranks.request.flags = WorkRequest::kDeterministic;
  for (const uint8_t node : std::initializer_list<uint8_t>{3, 1, 0, 2}) {
    for (const uint8_t rank : std::initializer_list<uint8_t>{1, 0}) ranks.Post(node, rank);
    site.RunFor(milliseconds(2));
  }
  site.RunFor(milliseconds(100));
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
}

// A miss counts as long as its wait was: without a bound waits of a node that comes now and then would double
// for ever.
TEST(OffloadStragglers, WaitsHaveABoundWhateverIsMissed) {
  StragglerClock clock;
  const JobConfig job{.policy = StragglerPolicy::kCascade};
  for (uint32_t i = 0; i < 1000; ++i) {
    clock.OnMiss(1);
    if (i % 3 == 0) clock.OnArrival(1, std::chrono::hours(1));
  }
  EXPECT_EQ(clock.WaitFor(1, job), LearnedWait::kMost);
  for (uint32_t i = 0; i < 1000; ++i) clock.OnArrival(1, microseconds(1));
  EXPECT_EQ(clock.WaitFor(1, job), StragglerClock::kLeastWait);
}

}  // namespace
}  // namespace longhaul::offload
