// What a node says of the sums that it sends on, and to whom: one engine, and packets of the others by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "tests/offload/all_reduce.h"

namespace longhaul::offload {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr uint64_t kA = 1, kB = 2, kC = 4;

struct NodeOptions {
  uint8_t flags = 0;
  size_t segs = 1;
  EngineOptions engine = {};
  JobConfig job = {};
};

// Node `self` of A -> B -> C -> D (of seg 0; D owns it). What it sends is kept, and arrives nowhere. Nothing
// is learned: deadlines are 100 ms away.
class OneNode {
 public:
  OneNode(uint8_t self, StragglerPolicy policy, NodeOptions options = {})
      : self_(self),
        site({.nodes = 4, .ranks = 2, .engine = options.engine}),
        ranks(site, 256 * options.segs, Small) {
    options.job.nodes = 0b1111;
    options.job.policy = policy;
    site.Configure(options.job);
    ranks.request.flags = options.flags;
    ranks.request.deadline = options.job.deadline;
    site.filter = [this](uint8_t from, uint8_t to, std::vector<uint8_t>& datagram) {
      const auto packet = Parse(datagram);
      if (from == self_) sent_.emplace_back(to, packet->header);
      return false;
    };
  }

  void Post() {
    for (const uint8_t rank : {uint8_t{0}, uint8_t{1}}) ranks.Post(self_, rank);
    site.RunFor(microseconds(10));
  }
  Header Of(PacketKind kind, uint8_t source, uint64_t contributors, uint32_t sid = 0) {
    Header h;
    h.kind = kind;
    h.type = DataType::kInt32;
    h.source = source;
    h.sid = sid;
    h.nodes = 0b1111;
    h.length = ranks.request.length;
    h.seg_bytes = 1024;
    h.flags = ranks.request.flags;
    h.contributors = contributors;
    return h;
  }
  void Inject(const Header& h) {
    const bool data = h.kind == PacketKind::kPartial || h.kind == PacketKind::kResult;
    std::vector<uint8_t> payload(data ? 1024 : 0, 1), packet(kHeaderBytes + payload.size());
    Encapsulate(h, payload, packet);
    site.Inject(self_, packet);
    site.RunFor(microseconds(10));
  }
  void Sum(uint8_t source, uint64_t contributors, uint32_t participants = 2) {
    Header h = Of(PacketKind::kPartial, source, contributors);
    h.participants = participants;
    Inject(h);
  }
  // What it has sent of a kind to a node, and nothing else of these is left.
  std::vector<Header> Take(PacketKind kind, uint8_t to) {
    std::vector<Header> taken;
    std::erase_if(sent_, [&](const auto& sent) {
      if (sent.first != to || sent.second.kind != kind) return false;
      taken.push_back(sent.second);
      return true;
    });
    return taken;
  }

 private:
  uint8_t self_;
  std::vector<std::pair<uint8_t, Header>> sent_;

 public:
  VirtualSite site;
  AllRanks<int32_t> ranks;
};

constexpr auto kPartial = PacketKind::kPartial;

// A's sum lacks a rank, and B, whose ranks are late, sends it on as that; B's own part is no more than B's.
TEST(OffloadLateSums, ASumThatIsSentOnWithoutTheRanksHereStaysIncomplete) {
  OneNode b(1, StragglerPolicy::kSelfSkip, {.flags = WorkRequest::kAllowPartial});
  Header h = b.Of(kPartial, 0, kA);
  h.participants = 1;
  h.flags |= Header::kIncomplete;
  b.Inject(h);
  b.site.RunFor(milliseconds(101));
  const auto on = b.Take(kPartial, 2);
  ASSERT_FALSE(on.empty());
  EXPECT_EQ(on[0].contributors, kA);
  EXPECT_EQ(on[0].participants, 1u);
  EXPECT_EQ(on[0].missing, kB);
  EXPECT_NE(on[0].flags & Header::kIncomplete, 0);
  b.Post();
  const auto own = b.Take(kPartial, 3);
  ASSERT_FALSE(own.empty());
  EXPECT_EQ(own[0].contributors, kB);
  EXPECT_EQ(own[0].participants, 2u);  // its ranks, and not A's
  EXPECT_EQ(own[0].missing, 0u);
  EXPECT_EQ(own[0].flags & Header::kIncomplete, 0);
}

// C has gone on; what comes goes on as it is, with all that it says.
struct PassedOn : OneNode {
  PassedOn() : OneNode(2, StragglerPolicy::kCascade, {.flags = WorkRequest::kAllowPartial}) {
    Post();
    site.RunFor(milliseconds(101));
    EXPECT_EQ(Take(kPartial, 3).at(0).contributors, kC);
    Inject(Of(PacketKind::kAckPartial, 3, kC));
    Header h = Of(kPartial, 1, kA);
    h.participants = 1;
    h.missing = kB;
    h.late = kB;
    h.flags |= Header::kIncomplete;
    Inject(h);
  }
};

TEST(OffloadLateSums, ALateSumKeepsWhatItSays) {
  PassedOn c;
  const auto on = c.Take(kPartial, 3);
  ASSERT_EQ(on.size(), 1u);
  EXPECT_EQ(on[0].contributors, kA);
  EXPECT_EQ(on[0].participants, 1u);
  EXPECT_EQ(on[0].missing, kB);
  EXPECT_EQ(on[0].late, kB);
  EXPECT_NE(on[0].flags & Header::kIncomplete, 0);
}

// It is on its way until the node that it was sent to has it.
TEST(OffloadLateSums, AnAnswerOfAnotherNodeIsNoAnswer) {
  PassedOn c;
  c.Inject(c.Of(PacketKind::kAckPartial, 0, kA));
  c.Take(kPartial, 3);
  c.site.RunFor(milliseconds(300));
  EXPECT_FALSE(c.Take(kPartial, 3).empty());
  c.Inject(c.Of(PacketKind::kAckPartial, 3, kA));
  c.Take(kPartial, 3);
  c.site.RunFor(milliseconds(300));
  EXPECT_TRUE(c.Take(kPartial, 3).empty());
}

TEST(OffloadLateSums, ARedirectedSumLeavesAtOnce) {
  PassedOn c;
  Header redirect = c.Of(PacketKind::kRedirect, 3, kA);
  redirect.root = 1;  // the owner has left the seg to B
  c.Inject(redirect);
  EXPECT_EQ(c.Take(kPartial, 1).size(), 1u);
}

// The result names the nodes that were waited for, also when the sum that says so is the last.
TEST(OffloadLateSums, AResultSaysWhoWasLate) {
  OneNode d(3, StragglerPolicy::kLeafDemote);
  d.Post();
  Header h = d.Of(kPartial, 2, kA | kB | kC);
  h.participants = 6;
  h.late = kB;
  d.Inject(h);
  const auto results = d.Take(PacketKind::kResult, 0);
  ASSERT_FALSE(results.empty());
  EXPECT_EQ(results[0].late, kB);
}

// B has the result, and its ranks have not come: a notice and B's deadline change nothing.
TEST(OffloadLateSums, AResultThatWaitsForTheRanksHereIsNoSum) {
  OneNode b(1, StragglerPolicy::kSelfSkip);
  Header h = b.Of(PacketKind::kResult, 0, 0b1111);
  h.participants = 8;
  h.root = 3;
  b.Inject(h);
  b.site.RunFor(milliseconds(101));
  Header notice = b.Of(PacketKind::kGoneOn, 0, 0);
  notice.missing = kA;
  b.Inject(notice);
  EXPECT_TRUE(b.Take(kPartial, 2).empty());
  EXPECT_TRUE(b.Take(kPartial, 3).empty());
  b.Post();
  EXPECT_EQ(b.ranks.at(1, 0).receive[5], 0x01010101);
}

// What would fill more than half of the pool while it is on its way waits for the ranks here.
TEST(OffloadLateSums, SumsAreNotSentOnFromAPoolThatHasNoRoom) {
  for (const uint32_t sums : {2u, 4u}) {
    OneNode b(1, StragglerPolicy::kSelfSkip, {.segs = 16, .engine = {.pool_segs = 8}});
    for (uint32_t i = 0; i < sums; ++i) {
      Header h = b.Of(kPartial, 0, kA, 4 * i);
      h.participants = 2;
      b.Inject(h);
    }
    b.site.RunFor(milliseconds(101));
    EXPECT_EQ(b.Take(kPartial, 2).empty(), sums == 4) << sums;
  }
}

// At the deadline the others go on; an owner waits for what they send.
TEST(OffloadLateSums, AnOwnerWaitsForWhatOthersSendAtTheDeadline) {
  OneNode d(3, StragglerPolicy::kOff,
            {.flags = WorkRequest::kAllowPartial, .job = {.deadline = milliseconds(40)}});
  d.Post();
  d.site.RunFor(milliseconds(45));
  EXPECT_TRUE(d.Take(PacketKind::kResult, 0).empty());
  d.Sum(2, kA | kB | kC, 6);
  const auto results = d.Take(PacketKind::kResult, 0);
  ASSERT_FALSE(results.empty());
  EXPECT_EQ(results[0].contributors, 0b1111u);
}

// Timers are for the segs of two windows.
TEST(OffloadLateSums, ALateSumOfASegFarAheadComesAgain) {
  OneNode d(3, StragglerPolicy::kLeafDemote, {.segs = 16, .engine = {.window_segs = 1}});
  d.Inject(d.Of(PacketKind::kClaim, 2, 0, 12));
  EXPECT_EQ(d.Take(PacketKind::kOwner, 2).size(), 1u);
  Header h = d.Of(kPartial, 1, kA | kB, 12);
  h.participants = 4;
  d.Inject(h);
  EXPECT_TRUE(d.Take(PacketKind::kAckPartial, 1).empty());
  EXPECT_EQ(d.site.engine(3).stats().segs_in_use, 0u);
}

TEST(OffloadLateSums, OnlyOwnersThatMayBeDemotedLeaveTheirSegs) {
  OneNode d(3, StragglerPolicy::kSelfSkip);
  d.Inject(d.Of(PacketKind::kClaim, 2, 0));
  EXPECT_TRUE(d.Take(PacketKind::kOwner, 2).empty());
  EXPECT_EQ(d.site.engine(3).stats().packets_refused, 1u);
}

// The root could not tell where its parts belong in the order.
TEST(OffloadLateSums, ARootInRankOrderTakesTheSumOfOneChildAtATime) {
  OneNode d(3, StragglerPolicy::kOff,
            {.flags = WorkRequest::kDeterministic, .job = {.route = Route::kTree, .root_node = 3}});
  for (const uint64_t set : {kA | kB, kA}) {
    Header h = d.Of(kPartial, 0, set);
    h.root = 3;
    h.flags |= Header::kTree;
    h.participants = 2;
    d.Inject(h);
    EXPECT_EQ(d.Take(PacketKind::kAckPartial, 0).empty(), set != kA);
  }
}

// D is late in every message, so C claims its segs in the last one; `answer` is asked about packets of seg 0,
// whose sums do not arrive.
struct Claiming {
  template <typename F>
  Claiming(uint8_t flags, F answer) : site({.nodes = 4, .ranks = 1, .seed = 5}) {
    site.Configure({.nodes = 0b1111, .policy = StragglerPolicy::kLeafDemote, .deadline = milliseconds(200)});
    for (uint32_t mid = 0; mid < 60; ++mid) {
      messages.push_back(std::make_unique<AllRanks<int32_t>>(site, 256 * 8, Small));
      AllRanks<int32_t>& message = *messages.back();
      message.request.mid = 4 * mid;
      message.request.flags = flags;
      for (uint8_t node = 0; node < 3; ++node) message.Post(node, 0, mid);
      if (mid >= 40) site.RunFor(milliseconds(3));
      if (mid == 59) break;
      message.Post(3, 0, mid);
      site.RunFor(milliseconds(100));
      if (mid < 58) continue;
      site.filter = [this, answer](uint8_t from, uint8_t to, std::vector<uint8_t>& datagram) {
        const auto packet = Parse(datagram);
        if (packet->header.sid != 0) return true;
        claims += from == 2 && packet->header.kind == PacketKind::kClaim;
        if (from == 2 && packet->header.kind == kPartial) sums.emplace_back(to, packet->header);
        return answer(packet->header, datagram) && packet->header.kind != kPartial;
      };
    }
  }
  VirtualSite site;
  std::vector<std::unique_ptr<AllRanks<int32_t>>> messages;
  uint32_t claims = 0;
  std::vector<std::pair<uint8_t, Header>> sums;  // of C
};

// The seg is another's already: C sends its sum there.
TEST(OffloadLateSums, AClaimInVainLeadsToTheOwner) {
  Claiming run(0, [](const Header& h, std::vector<uint8_t>& datagram) {
    if (h.kind != PacketKind::kOwner) return true;
    Header of_b = h;
    of_b.root = 1;
    Encapsulate(of_b, {}, datagram);
    return true;
  });
  run.site.RunFor(milliseconds(20));
  EXPECT_GT(run.claims, 0u);
  ASSERT_FALSE(run.sums.empty());
  EXPECT_EQ(run.sums[0].first, 1);
}

// Nothing answers until time is up: then C sends its sum to D, and again.
TEST(OffloadLateSums, AClaimEndsWhenTimeIsUp) {
  Claiming run(WorkRequest::kAllowPartial,
               [](const Header& h, std::vector<uint8_t>&) { return h.kind != PacketKind::kOwner; });
  run.site.RunFor(milliseconds(190));
  EXPECT_GT(run.claims, 1u);
  run.sums.clear();
  run.claims = 0;
  run.site.RunFor(milliseconds(240));
  EXPECT_GT(run.sums.size(), 1u);
  EXPECT_LE(run.claims, 1u);
  EXPECT_EQ(run.sums[0].first, 3);
}

// Nodes 2 and 3 are leaves of the job; a message of them alone has a ring all the same.
TEST(OffloadLateSums, AMessageOfLeavesAloneHasNoLeaves) {
  VirtualSite site({.nodes = 5, .ranks = 1, .seed = 5});
  site.Configure({.nodes = 0b11111, .policy = StragglerPolicy::kLeafDemote});
  std::vector<std::unique_ptr<AllRanks<int32_t>>> messages;
  for (uint32_t mid = 0; mid < 61; ++mid) {
    messages.push_back(std::make_unique<AllRanks<int32_t>>(site, 16 * 10, Small));
    AllRanks<int32_t>& message = *messages.back();
    message.request.mid = mid;
    if (mid == 60) message.request.nodes = 0b01100;
    for (const uint8_t node : {uint8_t{0}, uint8_t{1}, uint8_t{4}}) {
      if (mid < 60) message.Post(node, 0, mid);
    }
    if (mid >= 40 && mid < 60) site.RunFor(milliseconds(3));
    for (const uint8_t node : {uint8_t{2}, uint8_t{3}}) message.Post(node, 0, mid);
    site.RunFor(milliseconds(400));
    EXPECT_EQ(site.CompletionOf(2, 0, mid).status, WorkStatus::kSuccess) << mid;
  }
  EXPECT_GT(site.engine(0).stats().demotions, 0u);
  EXPECT_EQ(messages.back()->at(3, 0).receive[3], Small(2, 0, 3) + Small(3, 0, 3));
}

// An abort that takes the place of an older one is said as often as any.
TEST(OffloadLateSums, AnAbortInTheRoomOfAnotherIsSaidFourTimes) {
  OneNode a(0, StragglerPolicy::kOff);
  for (uint32_t mid = 0; mid <= Aborts::kMost; ++mid) {
    a.ranks.request.mid = mid;
    a.ranks.Post(0, 0, 1000 + mid);
    a.site.Post(0, 0, {.wr_id = mid, .opcode = Opcode::kCancel, .mid = mid});
    a.site.RunFor(microseconds(10));
  }
  a.site.RunFor(milliseconds(100));
  const auto aborts = a.Take(PacketKind::kAbort, 1);
  EXPECT_EQ(std::ranges::count(aborts, Aborts::kMost, &Header::mid), 4);
  EXPECT_EQ(std::ranges::count(aborts, 0u, &Header::mid), 1);
}

// A sum that waits for its turn to leave is not on its way yet: the round trip begins when it leaves.
TEST(OffloadLateSums, ARoundTripBeginsWhenTheSumLeaves) {
  EngineOptions options;
  options.nodes = 0b11;
  Engine engine(options);
  Instant now = Instant::FromNanoseconds(1'000'000'000);
  const JobConfig job{.nodes = 0b11};
  WorkRequest request{.opcode = Opcode::kConfig, .root_node = WorkRequest::kThisNode, .config = &job};
  ASSERT_TRUE(engine.Post(now, 0, request).ok());
  std::vector<int32_t> memory(256);
  const uint32_t key = engine.Register(0, std::as_writable_bytes(std::span(memory))).value();
  std::vector<uint8_t> packet(kHeaderBytes + 1024), answer(kHeaderBytes);
  const auto next = [&]() -> std::optional<Header> {
    while (const auto out = engine.PollTransmit(now, packet)) {
      const Header h = Parse(ByteSpan(packet).first(out->bytes))->header;
      if (h.kind == kPartial) return h;
    }
    return std::nullopt;
  };
  for (const uint32_t mid : {0u, 2u}) {  // node 1 owns their seg
    request = {.type = DataType::kInt32, .mid = mid, .length = 1024, .send = {key}, .receive = {key}};
    ASSERT_TRUE(engine.Post(now, 0, request).ok());
    engine.Advance(now, 1 << 20);
    if (mid == 0) now = now + milliseconds(4);  // nothing is taken for so long
    auto sent = next();
    ASSERT_TRUE(sent.has_value());
    now = now + microseconds(10);
    if (mid == 0) {
      sent->kind = PacketKind::kAckPartial;
      sent->source = 1;
      Encapsulate(*sent, {}, answer);
      engine.HandlePacket(now, answer);
    }
  }
  now = now + milliseconds(1);  // much more than a round trip
  engine.HandleTimeout(now);
  EXPECT_TRUE(next().has_value());
}

}  // namespace
}  // namespace longhaul::offload
