// Late nodes of a ring: which nodes go on without them, and that each node is in the result once all the
// same.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

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
      sum.passed_on += s.passed_on;
      sum.self_skips += s.self_skips;
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
  EXPECT_EQ(sum.overlaps_refused, 0u);
}

// Where sums of a message of five nodes went, and what each said: (from, to, contributors), each once.
struct Way {
  uint8_t from, to;
  uint64_t set;
  auto operator<=>(const Way&) const = default;
};
std::string Text(const std::vector<Way>& ways) {
  std::string text;
  for (const Way& way : ways) {
    text += std::to_string(way.from) + ">" + std::to_string(way.to) + " " + std::to_string(way.set) + "\n";
  }
  return text;
}

// Messages of five segs; `ways` are those of the first, 0 -> 1 -> 2 -> 3 -> 4 (owner). Deadlines are learned
// from messages without a late node. Then those of `late` post so much later, and the links are as `filter`
// has them.
class FiveNodes {
 public:
  explicit FiveNodes(StragglerPolicy policy)
      : site({.nodes = 5, .ranks = 1, .engine = {.seg_bytes = 64}, .seed = 3}) {
    site.Configure({.nodes = 0b11111, .policy = policy, .skip_after = microseconds(200)});
    for (int i = 0; i < 40; ++i) Run({});
    stats = Sums();
  }

  // Message after message, each with the same ring.
  void Run(const std::vector<std::pair<uint8_t, Duration>>& late) {
    messages.push_back(std::make_unique<AllRanks<int32_t>>(site, 16 * 5, Small));
    AllRanks<int32_t>& message = *messages.back();
    message.request.mid = mid_ += 5;
    ways.clear();
    const auto hook = filter;
    site.filter = [this, hook](uint8_t from, uint8_t to, std::vector<uint8_t>& datagram) {
      const Header h = Parse(datagram)->header;
      const Way way{from, to, h.contributors};
      if (h.sid != 0) return true;
      if (h.kind == PacketKind::kPartial && std::ranges::count(ways, way) == 0) ways.push_back(way);
      return !hook || hook(from, to, h);
    };
    for (uint8_t node = 0; node < 5; ++node) {
      if (std::ranges::count(late, node, [](const auto& l) { return l.first; }) == 0)
        message.Post(node, 0, mid_);
    }
    Duration waited{0};
    for (const auto& [node, after] : late) {
      site.RunFor(after - waited);
      waited = after;
      message.Post(node, 0, mid_);
    }
    site.RunFor(milliseconds(400));
    EXPECT_TRUE(message.AllEnded(WorkStatus::kSuccess, mid_));
    EXPECT_TRUE(message.AllReceived(message.Expected()));
    EXPECT_EQ(site.SegsInUse(), 0u);
    std::ranges::sort(ways);
    site.filter = nullptr;
  }
  OffloadStats Sums() {
    OffloadStats sum;
    for (uint8_t node = 0; node < 5; ++node) {
      for (const auto field :
           {&OffloadStats::skips, &OffloadStats::redirects, &OffloadStats::passed_on,
            &OffloadStats::self_skips, &OffloadStats::demotions, &OffloadStats::overlaps_refused}) {
        sum.*field += site.engine(node).stats().*field;
      }
    }
    return sum;
  }
  uint64_t Since(uint64_t OffloadStats::*field) { return Sums().*field - stats.*field; }

  VirtualSite site;
  std::vector<std::unique_ptr<AllRanks<int32_t>>> messages;
  std::vector<Way> ways;
  std::function<bool(uint8_t from, uint8_t to, const Header&)> filter;  // of the first seg's packets
  OffloadStats stats;

 private:
  uint32_t mid_ = 0;
};

void ExpectWays(const FiveNodes& run, std::vector<Way> expected) {
  std::ranges::sort(expected);
  EXPECT_EQ(Text(run.ways), Text(expected));
}

constexpr uint64_t kA = 1, kB = 2, kC = 4, kD = 8;

// Nothing tells A where to aim but its clock, which began when the others' sums of other segs came.
TEST(OffloadStragglers, ALateSumGoesToTheFirstNodeThatStillWaits) {
  FiveNodes run(StragglerPolicy::kCascade);
  run.filter = [](uint8_t, uint8_t, const Header& h) { return h.kind != PacketKind::kGoneOn; };
  run.Run({{0, milliseconds(3)}});
  ExpectWays(run, {{0, 4, kA}, {1, 2, kB}, {2, 3, kB | kC}, {3, 4, kB | kC | kD}});
  EXPECT_EQ(run.Since(&OffloadStats::passed_on), 0u);
}

// A's sum is on its way for longer than B waits; B has sent its own, and sends A's on as it is.
TEST(OffloadStragglers, ANodeThatHasSentPassesALateSumOnUnmerged) {
  FiveNodes run(StragglerPolicy::kCascade);
  bool lost = false;  // it comes again when nothing waits for it any more
  run.filter = [&](uint8_t from, uint8_t, const Header& h) {
    return from != 0 || h.kind != PacketKind::kPartial || std::exchange(lost, true);
  };
  run.Run({});
  ExpectWays(run, {{0, 1, kA}, {1, 2, kB}, {1, 4, kA}, {2, 3, kB | kC}, {3, 4, kB | kC | kD}});
  EXPECT_EQ(run.Since(&OffloadStats::passed_on), 1u);
  EXPECT_EQ(run.Since(&OffloadStats::overlaps_refused), 0u);
}

// B has sent, and has no room for A's late sum: A sends it to C at once, and B never takes it from then on.
TEST(OffloadStragglers, ASumThatFindsNoRoomGoesElsewhereAndIsNeverTakenThere) {
  VirtualSite site({.nodes = 3, .ranks = 1, .engine = {.pool_segs = 6}});
  site.Configure({.nodes = 0b111, .policy = StragglerPolicy::kSeedSkip, .skip_after = microseconds(100)});
  // A message that node 0 alone has posted takes units of the others.
  AllRanks<int32_t> blocking(site, 16 * 256, Small);
  blocking.request.mid = 3;
  blocking.request.deadline = milliseconds(60);
  AllRanks<int32_t> ranks(site, 256, Small);  // A -> B -> C
  ranks.Post(1, 0);
  ranks.Post(2, 0);
  std::vector<uint8_t> sum;
  bool open = false;
  site.filter = [&](uint8_t from, uint8_t to, std::vector<uint8_t>& datagram) {
    const Header h = Parse(datagram)->header;
    if (from == 0 && to == 1 && h.kind == PacketKind::kPartial && h.mid == 0) sum = datagram;
    const bool to_owner = from == 0 && to == 2 && h.kind == PacketKind::kPartial && h.mid == 0;
    return h.kind != PacketKind::kGoneOn && (open || !to_owner);
  };
  site.RunFor(milliseconds(5));
  blocking.Post(0, 0, 2);
  site.RunFor(milliseconds(5));
  ASSERT_GE(site.engine(1).stats().segs_in_use, 2u);
  ranks.Post(0, 0);
  site.RunFor(microseconds(200));  // before it comes again
  EXPECT_EQ(site.engine(0).stats().redirects, 1u);
  site.RunFor(milliseconds(100));  // there is room again
  ASSERT_EQ(site.engine(1).stats().segs_in_use, 0u);
  ASSERT_FALSE(sum.empty());
  site.Inject(1, sum);
  EXPECT_EQ(site.engine(1).stats().passed_on, 0u);
  open = true;
  site.RunFor(milliseconds(600));
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
}

// B's ranks are late, and A's sum goes on without them; their part goes to the owner, and nowhere else.
TEST(OffloadStragglers, SelfSkipForwardsWithoutItsOwnLateRanks) {
  FiveNodes run(StragglerPolicy::kSelfSkip);
  // B's clock began when A's sum came, long after A's.
  Instant first, sent;
  run.filter = [&](uint8_t from, uint8_t to, const Header& h) {
    if (h.kind == PacketKind::kPartial && from == 0) first = run.site.now();
    if (h.kind == PacketKind::kPartial && from == 1 && to == 2) sent = run.site.now();
    return true;
  };
  run.Run({{1, milliseconds(3)}});
  EXPECT_LE(sent - first, microseconds(131));  // the slack, 0.1 ms and 25 us, and a link
  ExpectWays(run, {{0, 1, kA}, {1, 2, kA}, {2, 3, kA | kC}, {3, 4, kA | kC | kD}, {1, 4, kB}});
  EXPECT_EQ(run.Since(&OffloadStats::self_skips), 4u);  // of five segs node 1 owns one
  // With cascade C and D give B up, with what is before it.
  FiveNodes cascade(StragglerPolicy::kCascade);
  cascade.Run({{1, milliseconds(3)}});
  ExpectWays(cascade, {{0, 1, kA}, {2, 3, kC}, {3, 4, kC | kD}, {1, 4, kA | kB}});
  EXPECT_EQ(cascade.Since(&OffloadStats::self_skips), 0u);
}

// The beginner has nothing to send on, and says that it is late: B waits no longer than that.
TEST(OffloadStragglers, SelfSkipOfTheFirstNodeTellsTheNext) {
  FiveNodes run(StragglerPolicy::kSelfSkip);
  uint32_t notices = 0;
  Instant told, sent;
  run.filter = [&](uint8_t from, uint8_t to, const Header& h) {
    if (from == 0 && to == 1 && h.kind == PacketKind::kGoneOn) told = run.site.now();
    if (from == 1 && to == 2 && h.kind == PacketKind::kPartial) sent = run.site.now();
    notices += from == 0 && to == 1 && h.kind == PacketKind::kGoneOn && h.missing == kA;
    return true;
  };
  run.Run({{0, milliseconds(3)}});
  EXPECT_EQ(notices, 1u);
  EXPECT_LE(sent - told, microseconds(6));  // a link
  ExpectWays(run, {{1, 2, kB}, {2, 3, kB | kC}, {3, 4, kB | kC | kD}, {0, 4, kA}});
}

// In place: a rank that has not posted yet is still writing to where the result will be.
TEST(OffloadStragglers, SelfSkipDoesNotTouchMemoryOfLateRanks) {
  VirtualSite site({.nodes = 3, .ranks = 1});
  site.Configure({.nodes = 0b111, .policy = StragglerPolicy::kSelfSkip});
  for (uint32_t mid = 0; mid <= 30; ++mid) {
    const bool late = mid == 30;
    std::vector<std::vector<int32_t>> memory(3, std::vector<int32_t>(512));
    std::vector<int32_t> expected(512);
    std::vector<WorkRequest> requests;
    for (uint8_t node = 0; node < 3; ++node) {
      for (size_t i = 0; i < 512; ++i) {
        memory[node][i] = Small(node, 0, i);
        expected[i] += memory[node][i];
      }
      const uint32_t key = site.Key(node, 0, std::as_writable_bytes(std::span(memory[node])));
      requests.push_back(
          {.wr_id = mid, .type = DataType::kInt32, .mid = mid, .nodes = 0b111, .length = 2048});
      requests.back().send.key = requests.back().receive.key = key;
    }
    WorkRequest first = requests[1];
    first.seg_count = 1;  // the second seg of node 1 comes later
    WorkRequest second = requests[1];
    second.first_seg = 1;
    site.Post(0, 0, requests[0]);
    site.Post(2, 0, requests[2]);
    site.Post(1, 0, late ? first : requests[1]);
    if (late) {
      site.RunFor(milliseconds(3));
      for (size_t i = 256; i < 512; ++i) ASSERT_EQ(memory[1][i], Small(1, 0, i));
      site.Post(1, 0, second);
    }
    site.RunFor(milliseconds(100));
    for (uint8_t node = 0; node < 3; ++node) EXPECT_EQ(memory[node], expected) << int{node};
  }
  EXPECT_EQ(site.engine(1).stats().self_skips, 1u);
}

TEST(OffloadStragglers, CascadeWithSeveralLateNodes) {
  for (const std::vector<uint8_t>& late : std::vector<std::vector<uint8_t>>{{0, 1}, {0, 2}, {1, 2, 3}}) {
    Late run(StragglerPolicy::kCascade, late);
    EXPECT_GT(run.Sum().skips, 0u);
    EXPECT_EQ(run.Sum().overlaps_refused, 0u);
  }
}

// Every notice is lost: the late sum goes to a node that has gone on, which passes it on.
TEST(OffloadStragglers, NothingDependsOnANotice) {
  VirtualSite site({.nodes = 3, .ranks = 1});
  site.Configure({.nodes = 0b111, .policy = StragglerPolicy::kSeedSkip, .skip_after = microseconds(100)});
  AllRanks<int32_t> ranks(site, 256, Small);  // 0 -> 1 -> 2
  ranks.Post(1, 0);
  ranks.Post(2, 0);
  site.filter = [](uint8_t, uint8_t, std::vector<uint8_t>& datagram) {
    return Parse(datagram)->header.kind != PacketKind::kGoneOn;
  };
  site.RunFor(milliseconds(5));
  EXPECT_EQ(site.engine(1).stats().skips, 1u);
  ranks.Post(0, 0);
  site.RunFor(milliseconds(50));
  EXPECT_EQ(site.engine(1).stats().passed_on, 1u);
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

// B is late in every message: after some it begins and owns nothing, and its part goes straight to who owns.
TEST(OffloadStragglers, LeafDemotePassesOverWhoIsAlwaysLate) {
  FiveNodes run(StragglerPolicy::kLeafDemote);
  for (uint32_t i = 0; i < Demotion::kRounds; ++i) run.Run({{1, milliseconds(3)}});
  EXPECT_EQ(run.Since(&OffloadStats::demotions), 0u);
  const uint64_t skips = run.Since(&OffloadStats::skips);
  run.Run({{1, milliseconds(3)}});
  ExpectWays(run, {{0, 2, kA}, {2, 3, kA | kC}, {3, 4, kA | kC | kD}, {1, 4, kB}});
  EXPECT_EQ(run.Since(&OffloadStats::demotions), 20u);  // at four nodes, which pass it over
  EXPECT_EQ(run.Since(&OffloadStats::skips), skips) << "a deadline is waited for";
}

// The owner is late in every message: the node before it claims the seg, adds its part and makes the result.
TEST(OffloadStragglers, AnOwnerThatIsAlwaysLateLeavesTheSegToTheNodeBeforeIt) {
  VirtualSite site({.nodes = 4, .ranks = 1, .seed = 5});
  site.Configure({.nodes = 0b1111, .policy = StragglerPolicy::kLeafDemote});
  std::vector<std::unique_ptr<AllRanks<int32_t>>> messages;
  uint32_t claims = 0, results_of_3 = 0;
  for (uint32_t mid = 0; mid < 60; ++mid) {
    messages.push_back(std::make_unique<AllRanks<int32_t>>(site, 256 * 8, Small));
    AllRanks<int32_t>& message = *messages.back();
    message.request.mid = mid;
    const bool last = mid == 59;
    site.filter = [&](uint8_t from, uint8_t to, std::vector<uint8_t>& datagram) {
      const Header h = Parse(datagram)->header;
      claims += last && h.kind == PacketKind::kClaim && from == 2 && to == 3;
      results_of_3 += last && h.kind == PacketKind::kResult && h.root == 3;
      return true;
    };
    for (uint8_t node = 0; node < 3; ++node) message.Post(node, 0, mid);
    if (mid >= 40) site.RunFor(milliseconds(3));
    message.Post(3, 0, mid);
    site.RunFor(milliseconds(400));
    ASSERT_TRUE(message.AllEnded(WorkStatus::kSuccess, mid)) << mid;
    ASSERT_TRUE(message.AllReceived(message.Expected())) << mid;
  }
  EXPECT_GE(claims, 2u);  // two of eight segs have node 3 as their owner
  EXPECT_EQ(results_of_3, 0u);
  EXPECT_EQ(site.SegsInUse(), 0u);
}

// The nodes do not agree on who is a leaf: one has not been there when the others learned it. Sums take other
// ways, and the results are the same.
TEST(OffloadStragglers, NodesNeedNotAgreeOnTheLeaves) {
  for (uint8_t stranger = 0; stranger < 4; ++stranger) {
    VirtualSite site({.nodes = 4, .ranks = 1, .seed = 5});
    site.Configure({.nodes = 0b1111, .policy = StragglerPolicy::kLeafDemote});
    std::vector<std::unique_ptr<AllRanks<int32_t>>> messages;
    for (uint32_t mid = 0; mid < 60; ++mid) {
      messages.push_back(std::make_unique<AllRanks<int32_t>>(site, 16 * 8, Small));
      AllRanks<int32_t>& message = *messages.back();
      message.request.mid = mid;
      if (mid >= 40 && mid < 50) message.request.nodes &= ~(uint64_t{1} << stranger);
      const uint8_t late = stranger == 3 ? 2 : 3;
      for (uint8_t node = 0; node < 4; ++node) {
        if ((message.request.nodes >> node & 1) != 0 && node != late) message.Post(node, 0, mid);
      }
      if (mid >= 40) site.RunFor(milliseconds(3));
      message.Post(late, 0, mid);
      site.RunFor(milliseconds(400));
      for (uint8_t node = 0; node < 4; ++node) {
        if ((message.request.nodes >> node & 1) == 0) continue;
        ASSERT_EQ(site.CompletionOf(node, 0, mid).status, WorkStatus::kSuccess) << mid << " " << int{node};
      }
      if (message.request.nodes == 0b1111) {
        ASSERT_TRUE(message.AllReceived(message.Expected())) << mid;
      }
    }
    EXPECT_GT(site.engine(stranger == 0 ? 1 : 0).stats().demotions, 0u);
    EXPECT_EQ(site.SegsInUse(), 0u);
  }
}

// The first who claims gets the seg; another one is told who has it.
TEST(OffloadStragglers, ASegIsLeftOnce) {  // 0 -> 1 -> 2 -> 3
  VirtualSite site({.nodes = 4, .ranks = 1});
  site.Configure({.nodes = 0b1111, .policy = StragglerPolicy::kLeafDemote});
  std::vector<std::pair<uint8_t, uint8_t>> answers;  // to whom, who owns
  site.filter = [&](uint8_t, uint8_t to, std::vector<uint8_t>& datagram) {
    const Header h = Parse(datagram)->header;
    if (h.kind == PacketKind::kOwner) answers.emplace_back(to, h.root);
    return false;
  };
  Header h;
  h.kind = PacketKind::kClaim;
  h.type = DataType::kInt32;
  h.nodes = 0b1111;
  h.length = 1024;
  h.seg_bytes = 1024;
  std::vector<uint8_t> packet(kHeaderBytes);
  for (const uint8_t source : {uint8_t{2}, uint8_t{1}, uint8_t{2}}) {
    h.source = source;
    Encapsulate(h, {}, packet);
    site.Inject(3, packet);
    site.RunFor(microseconds(100));
  }
  const std::vector<std::pair<uint8_t, uint8_t>> expected = {{2, 2}, {1, 2}, {2, 2}};
  EXPECT_EQ(answers, expected);
}

// A sum goes past B, whose deadline its sender does not know: B goes on when it is told, not at its deadline.
TEST(OffloadStragglers, ANodeThatALateSumGoesPastWaitsNoLonger) {
  VirtualSite site({.nodes = 4, .ranks = 1});
  site.Configure({.nodes = 0b1111});          // nothing is learned: deadlines are 100 ms away
  AllRanks<int32_t> ranks(site, 256, Small);  // 0 -> 1 -> 2 -> 3
  for (const uint8_t node : {uint8_t{1}, uint8_t{2}, uint8_t{3}}) ranks.Post(node, 0);
  site.RunFor(milliseconds(1));
  EXPECT_EQ(site.engine(1).stats().packets_sent, 0u);
  Header h;
  h.kind = PacketKind::kGoneOn;
  h.type = DataType::kInt32;
  h.source = 0;
  h.nodes = 0b1111;
  h.contributors = kA;
  h.length = 1024;
  h.seg_bytes = 1024;
  std::vector<uint8_t> packet(kHeaderBytes);
  Encapsulate(h, {}, packet);
  site.Inject(1, packet);
  site.RunFor(milliseconds(1));
  EXPECT_GE(site.engine(1).stats().packets_sent, 1u);
  ranks.Post(0, 0);
  site.RunFor(milliseconds(500));
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
}

// Of a reduce a node ends when its own sum is taken: what came later would be lost.
TEST(OffloadStragglers, OnlyAnAllReduceGoesOnWithoutALateNode) {
  VirtualSite site({.nodes = 4, .ranks = 1});
  site.Configure({.nodes = 0b1111, .policy = StragglerPolicy::kSeedSkip, .skip_after = microseconds(100)});
  for (const Opcode opcode : {Opcode::kReduce, Opcode::kReduceScatter}) {
    AllRanks<int32_t> ranks(site, 256, Small);
    ranks.request.opcode = opcode;
    ranks.request.mid = opcode == Opcode::kReduce ? 0 : 1;
    ranks.request.root_node = opcode == Opcode::kReduce ? 3 : 0;
    for (const uint8_t node : {uint8_t{1}, uint8_t{2}, uint8_t{3}}) ranks.Post(node, 0, ranks.request.mid);
    site.RunFor(milliseconds(5));
    ranks.Post(0, 0, ranks.request.mid);
    site.RunFor(milliseconds(300));
    EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess, ranks.request.mid));
    for (uint8_t node = 0; node < 4; ++node) EXPECT_EQ(site.engine(node).stats().skips, 0u);
  }
}

TEST(OffloadStragglers, LossAndLateNodesTogether) {
  for (const StragglerPolicy policy : {StragglerPolicy::kSeedSkip, StragglerPolicy::kCascade,
                                       StragglerPolicy::kSelfSkip, StragglerPolicy::kLeafDemote}) {
    Late run(policy, {1, 3}, 6, {.loss = 0.1, .duplication = 0.1, .reordering = 0.2, .stale = 0.1});
    EXPECT_GT(run.Sum().skips, 0u);
  }
}

// At the deadline nodes go on without node 1, which comes before the owners are done: its sum would be added
// behind those of the nodes that it belongs before.
TEST(OffloadStragglers, ALateSumIsNotAddedOutOfTurnInRankOrder) {
  VirtualSite site({.nodes = 4, .ranks = 1});
  site.Configure({.nodes = 0b1111});
  AllRanks<float> ranks(site, 256 * 16, Fraction);
  ranks.request.flags = WorkRequest::kDeterministic | WorkRequest::kAllowPartial;
  ranks.request.deadline = milliseconds(40);
  for (const uint8_t node : {uint8_t{0}, uint8_t{2}, uint8_t{3}}) ranks.Post(node, 0);
  site.RunFor(milliseconds(41));
  ranks.Post(1, 0);
  site.RunFor(milliseconds(300));
  EXPECT_GT(site.engine(2).stats().packets_refused, 0u);
  for (uint8_t node = 0; node < 4; ++node) {
    EXPECT_EQ(site.CompletionOf(node, 0, 1).status, WorkStatus::kPartial) << int{node};
    EXPECT_TRUE(ranks.IsSumWithout(0b0111, node, 0)) << int{node};  // all go on at once
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

}  // namespace
}  // namespace longhaul::offload
