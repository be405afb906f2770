// Segment aggregation in a NIC module: a test for every requirement B1-B10 (docs/internals/offload.md).
#include <gtest/gtest.h>

#include "tests/offload/all_reduce.h"

namespace longhaul::offload {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

Collective TwoNodesOfFour() {
  Collective what;
  what.self = 1;
  what.nodes = 0b11;
  what.ranks = 0b1111;
  what.seg_bytes = 1024;
  what.length = 10'000;
  what.segs = static_cast<uint32_t>(SegCount(what.length, what.seg_bytes));
  return what;
}

// Objects: the ranks. What B1 lists, from a request and its job.
TEST(OffloadB1, TheParametersOfTheCollectiveAreComputedFirst) {
  const Collective what = TwoNodesOfFour();
  EXPECT_EQ(what.local_ranks(), 4u);  // number of local objects
  EXPECT_EQ(what.IndexOf(2), 2u);     // index of the local object
  EXPECT_EQ(what.GlobalIndexOf(2), 6u);
  EXPECT_EQ(what.world(), 8u);                // number of global objects
  EXPECT_EQ(what.receive_count(), 4u);        // segments of one data id that must arrive before the next step
  EXPECT_EQ(SegRoute(what, 0).NextOf(1), 0);  // the next communication object
  EXPECT_EQ(what.OffsetOf(3), 3072u);
}

TEST(OffloadB1, AMessageEndsWithoutAnyRankBeyondTheReceiveCount) {
  VirtualSite site({.ranks = 4});
  AllRanks<int32_t> ranks(site, 1000, Small);
  for (uint8_t rank = 0; rank < 3; ++rank) ranks.Post(0, rank);
  site.RunFor(milliseconds(1));
  EXPECT_EQ(site.CountOf(0, 0, 1), 0u);  // three of four
  ranks.Post(0, 3);
  site.RunFor(milliseconds(1));
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
}

TEST(OffloadB2, TheSixReduceTypes) {
  const int32_t a[] = {6, -3, 7}, b[] = {4, 5, 7};
  const auto reduced = [&](ReduceOp op) {
    VirtualSite site({.ranks = 2});
    AllRanks<int32_t> ranks(site, 3,
                            [&](uint8_t, uint8_t rank, size_t i) { return rank == 0 ? a[i] : b[i]; });
    ranks.request.op = op;
    ranks.PostAll();
    site.RunFor(milliseconds(1));
    EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
    return ranks.at(0, 1).receive;
  };
  EXPECT_EQ(reduced(ReduceOp::kSum), (std::vector<int32_t>{10, 2, 14}));
  EXPECT_EQ(reduced(ReduceOp::kAverage), (std::vector<int32_t>{5, 1, 7}));
  EXPECT_EQ(reduced(ReduceOp::kProduct), (std::vector<int32_t>{24, -15, 49}));
  EXPECT_EQ(reduced(ReduceOp::kXor), (std::vector<int32_t>{2, -8, 0}));
  EXPECT_EQ(reduced(ReduceOp::kMin), (std::vector<int32_t>{4, -3, 7}));
  EXPECT_EQ(reduced(ReduceOp::kMax), (std::vector<int32_t>{6, 5, 7}));
}

TEST(OffloadB2, AnAverageIsOfAllRanksOfAllNodes) {
  VirtualSite site({.nodes = 3, .ranks = 2});
  AllRanks<float> ranks(site, 600, [](uint8_t node, uint8_t rank, size_t) { return 6.0f * node + rank; });
  ranks.request.op = ReduceOp::kAverage;
  site.Configure({.nodes = 0b111});
  ranks.PostAll();
  site.RunFor(milliseconds(50));
  EXPECT_TRUE(ranks.AllReceived(std::vector<float>(600, 6.5f)));
}

// n = ceil(S / SA); no segment is skipped, and the last one's length is announced.
TEST(OffloadB3, SegmentsAreCountedAndTheLastIsShorter) {
  VirtualSite site({.nodes = 2, .ranks = 1});
  AllRanks<int32_t> ranks(site, 2500, Small);  // 10000 bytes: 9 segs of 1024, one of 784
  std::map<uint32_t, size_t> lengths;
  site.filter = [&](uint8_t, uint8_t, std::vector<uint8_t>& datagram) {
    const auto packet = Parse(datagram);
    if (packet->header.kind == PacketKind::kPartial) {
      EXPECT_EQ(packet->header.length, 10'000u);  // every segment's control data announces the whole
      EXPECT_EQ(packet->header.seg_bytes, 1024u);
      lengths[packet->header.sid] = packet->payload.size();
    }
    return true;
  };
  site.Configure({.nodes = 0b11});
  ranks.PostAll();
  site.RunFor(milliseconds(50));
  ASSERT_EQ(lengths.size(), 10u);
  for (uint32_t sid = 0; sid < 9; ++sid) EXPECT_EQ(lengths[sid], 1024u);
  EXPECT_EQ(lengths[9], 784u);
  const Completion done = site.CompletionOf(0, 0, 1);
  EXPECT_EQ(done.segs_total, 10u);
  EXPECT_EQ(done.segs_done, 10u);
  EXPECT_EQ(done.bytes, 10'000u);
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
}

TEST(OffloadB3, ALastSegOfAnotherLengthIsRefused) {
  VirtualSite site({.nodes = 2, .ranks = 1});
  AllRanks<int32_t> ranks(site, 300, Small);
  site.filter = [&](uint8_t, uint8_t, std::vector<uint8_t>& datagram) {
    const auto packet = Parse(datagram);
    if (packet->header.kind != PacketKind::kPartial || packet->header.sid != 1) return true;
    std::vector<uint8_t> shorter(datagram.size());
    shorter.resize(Encapsulate(packet->header, packet->payload.first(packet->payload.size() - 4), shorter));
    datagram = shorter;
    return true;
  };
  site.Configure({.nodes = 0b11});
  ranks.PostAll();
  site.RunFor(milliseconds(50));
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kLengthMismatch));
}

// The control data in front of what follows tells collectives from everything else, which passes unharmed.
TEST(OffloadB4, NormalPacketsPassUnharmedAndCollectivesTakeTheirPath) {
  VirtualSite site({.nodes = 2, .ranks = 1});
  AllRanks<int32_t> ranks(site, 3000, Small);
  site.Configure({.nodes = 0b11});
  Random random(4);
  std::vector<std::vector<uint8_t>> foreign;
  site.filter = [&](uint8_t, uint8_t to, std::vector<uint8_t>& datagram) {
    // Between every two packets of ours: noise, a short one, ours with another magic, ours with a broken bit.
    std::vector<uint8_t> noise(random.Below(300));
    for (uint8_t& byte : noise) byte = static_cast<uint8_t>(random.Next());
    std::vector<uint8_t> magic = datagram, broken = datagram;
    magic[4] ^= 1;
    broken[broken.size() - 1] ^= 1;
    for (const auto& other : {noise, magic, broken}) {
      foreign.push_back(other);
      site.Inject(to, other);
    }
    return true;
  };
  ranks.PostAll();
  site.RunFor(milliseconds(50));
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
  EXPECT_EQ(site.passed_on, foreign);
  EXPECT_EQ(site.engine(0).stats().foreign_packets + site.engine(1).stats().foreign_packets,
            foreign.size() / 3 * 2);
  EXPECT_EQ(site.engine(0).stats().damaged_packets + site.engine(1).stats().damaged_packets,
            foreign.size() / 3);
}

// Application and data id go to the store, the segment into a unit, the unit's place into the store.
TEST(OffloadB5, ASegmentWaitsInAUnitThatItsEntryFinds) {
  VirtualSite site({.nodes = 2, .ranks = 1});
  AllRanks<int32_t> ranks(site, 512, Small);  // two segs
  site.Configure({.nodes = 0b11});
  ranks.Post(0, 0);  // node 1's rank is late
  site.RunFor(microseconds(100));
  EXPECT_EQ(site.engine(1).stats().segs_in_use, 1u);  // seg 0 begins at node 0, seg 1 ends there
  ranks.Post(1, 0);
  site.RunFor(milliseconds(50));
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
  EXPECT_EQ(site.SegsInUse(), 0u);
}

TEST(OffloadB5, MessagesOfSeveralApplicationsFindTheirOwnOperands) {
  VirtualSite site({.nodes = 2, .ranks = 1});
  site.Configure({.nodes = 0b11}, 3);
  site.Configure({.nodes = 0b11}, 19);  // the same 4 bits as 3
  AllRanks<int32_t> one(site, 700, Small),
      other(site, 700, [](uint8_t, uint8_t, size_t i) { return int(i); });
  one.request.jid = 3;
  other.request.jid = 19;
  one.Post(0, 0, 1);
  other.Post(0, 0, 2);
  site.RunFor(microseconds(100));
  other.Post(1, 0, 2);
  one.Post(1, 0, 1);
  site.RunFor(milliseconds(50));
  EXPECT_TRUE(one.AllReceived(one.Expected()));
  EXPECT_TRUE(other.AllReceived(other.Expected()));
}

// {intra-node state 2 bit, inter-node state 16 bit, data}
TEST(OffloadB6, AUnitHasItsTwoStatesAndData) {
  SegPool pool(4, 1024);
  const SegRef ref = *pool.Take(0);
  SegPool::Unit* const unit = pool.Find(ref);
  unit->intra = Header::kInvolvesOthers;
  unit->contributors = 0b1010;
  EXPECT_EQ(unit->inter(), 0b1010);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(unit->data) % 64, 0u);
  EXPECT_EQ(kIntraBits, 2u);
  EXPECT_EQ(kInterBits, 16u);
}

TEST(OffloadB6, TheStatesTellTheProgressOfTheRing) {
  VirtualSite site({.nodes = 4, .ranks = 2});
  AllRanks<int32_t> ranks(site, 200, Small);
  std::vector<std::pair<int, int>> steps;  // intra, nodes in the sum
  site.filter = [&](uint8_t, uint8_t, std::vector<uint8_t>& datagram) {
    const Header h = Parse(datagram)->header;
    if (h.kind == PacketKind::kPartial || h.kind == PacketKind::kResult) {
      steps.emplace_back(h.intra, std::popcount(static_cast<uint16_t>(h.contributors)));
    }
    return true;
  };
  site.Configure({.nodes = 0b1111});
  ranks.PostAll();
  site.RunFor(milliseconds(50));
  // A -> B -> C -> D with 1, 2, 3 nodes in it, then the result three times.
  const std::vector<std::pair<int, int>> expected = {{3, 1}, {3, 2}, {3, 3}, {3, 4}, {3, 4}, {3, 4}};
  EXPECT_EQ(steps, expected);
}

TEST(OffloadB7, ShortBurstsAreCoalescedBeforeTheyAreReduced) {
  VirtualSite site({.ranks = 4});
  AllRanks<int32_t> ranks(site, 64 * 1024, Small);  // 256 segs of 1 KiB
  ranks.PostAll();
  site.RunFor(milliseconds(1));
  const OffloadStats stats = site.engine(0).stats();
  EXPECT_EQ(stats.segs_done, 256u);
  EXPECT_EQ(stats.bursts, 256u * 1024 / BufferCompute::kBurstBytes);
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
}

TEST(OffloadB7, NoPacketIsLargerThanASegAndItsHeader) {
  VirtualSite site({.nodes = 2, .ranks = 1});
  AllRanks<int32_t> ranks(site, 5000, Small);
  size_t most = 0;
  site.filter = [&](uint8_t, uint8_t, std::vector<uint8_t>& datagram) {
    most = std::max(most, datagram.size());
    return true;
  };
  site.Configure({.nodes = 0b11});
  ranks.PostAll();
  site.RunFor(milliseconds(50));
  EXPECT_EQ(most, 1024 + kHeaderBytes);
}

// App id 4 bit, data id 10, intra state 2, inter state 16: one word.
TEST(OffloadB8, WordZeroIsExactlyFourTenTwoSixteen) {
  Header h;
  h.jid = 0xfffb;  // app 0b1011
  h.sid = 0x5a1;   // data 0b0110100001
  h.intra = 0b10;
  h.nodes = 0xffff;
  h.contributors = 0x8001;
  std::vector<uint8_t> out(kHeaderBytes);
  ASSERT_EQ(Encapsulate(h, {}, out), kHeaderBytes);
  const uint32_t word = uint32_t{out[0]} << 24 | uint32_t{out[1]} << 16 | uint32_t{out[2]} << 8 | out[3];
  EXPECT_EQ(word, 0b1011'0110100001'10'1000000000000001u);
  EXPECT_EQ(Parse(out)->header, h);
}

// The caller polls for the end, which comes when no unit is left.
TEST(OffloadB9, TheEndIsReportedWhenNoUnitIsLeft) {
  VirtualSite site({.nodes = 3, .ranks = 1, .faults = {.loss = 0.2}, .seed = 9});
  AllRanks<int32_t> ranks(site, 20'000, Small);
  site.Configure({.nodes = 0b111});
  ranks.PostAll();
  site.RunFor(std::chrono::seconds(5));
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
  EXPECT_EQ(site.CompletionOf(2, 0, 1).reason, Reason::kDone);
  EXPECT_EQ(site.SegsInUse(), 0u);
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
}

// 10 bits of data id wrap: 512 segs at most are under way, and the extension has all 32.
TEST(OffloadB9, DataIdsThatWrapAreNotConfused) {
  VirtualSite site({.nodes = 2,
                    .ranks = 1,
                    .engine = {.seg_bytes = 64, .window_segs = 512},
                    .faults = {.loss = 0.05, .duplication = 0.05, .stale = 0.2},
                    .seed = 3});
  AllRanks<int32_t> ranks(site, 16 * 5000, [](uint8_t n, uint8_t, size_t i) { return int(i) * 31 + n; });
  site.Configure({.nodes = 0b11});
  ranks.PostAll();
  site.RunFor(std::chrono::seconds(9));
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
}

// Every NIC reduces its ranks, A -> B -> C -> D add their sums, the result travels round, all are identical.
TEST(OffloadB10, TheRingDeliversTheSameResultToAllRanksOfAllNodes) {
  VirtualSite site({.nodes = 4, .ranks = 3});
  AllRanks<float> ranks(site, 3333, Fraction);
  ranks.request.flags = WorkRequest::kDeterministic;
  site.Configure({.nodes = 0b1111});
  ranks.PostAll();
  site.RunFor(milliseconds(100));
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
}

TEST(OffloadB10, TheRingBeginsAtAnotherNodeForEverySeg) {
  VirtualSite site({.nodes = 4, .ranks = 1});
  AllRanks<int32_t> ranks(site, 256 * 8, Small);  // 8 segs
  std::map<uint8_t, int> begins;
  site.filter = [&](uint8_t from, uint8_t, std::vector<uint8_t>& datagram) {
    const Header h = Parse(datagram)->header;
    if (h.kind == PacketKind::kPartial && std::popcount(h.contributors) == 1) ++begins[from];
    return true;
  };
  site.Configure({.nodes = 0b1111});
  ranks.PostAll();
  site.RunFor(milliseconds(100));
  EXPECT_EQ(begins, (std::map<uint8_t, int>{{0, 2}, {1, 2}, {2, 2}, {3, 2}}));
}

}  // namespace
}  // namespace longhaul::offload
