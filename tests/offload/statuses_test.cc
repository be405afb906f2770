// Every status of a completion, provoked.
#include <gtest/gtest.h>

#include "tests/offload/all_reduce.h"

namespace longhaul::offload {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// How the request has ended a millisecond later.
WorkStatus EndOf(VirtualSite& site, uint8_t node, uint8_t rank, const WorkRequest& request) {
  site.Post(node, rank, request);
  site.RunFor(milliseconds(1));
  return site.CompletionOf(node, rank, request.wr_id).status;
}

TEST(OffloadStatus, Success) {
  VirtualSite site({.ranks = 1});
  AllRanks<int32_t> ranks(site, 1, Small);
  ranks.PostAll();
  site.RunFor(milliseconds(1));
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
}

TEST(OffloadStatus, BufferErrorWithoutMemoryForPartialSums) {
  VirtualSite site({.nodes = 2, .ranks = 1, .engine = {.scratch_bytes = 1000}});
  site.Configure({.nodes = 0b11});
  AllRanks<int32_t> ranks(site, 256, Small);
  ranks.request.opcode = Opcode::kReduce;
  ranks.Post(1, 0);  // not the root: its sums need 1024 bytes
  site.RunFor(milliseconds(1));
  EXPECT_EQ(site.CompletionOf(1, 0, 1).status, WorkStatus::kBufferError);
  ranks.request.length = 400;
  ranks.PostAll(2);
  site.RunFor(milliseconds(20));
  EXPECT_EQ(site.CompletionOf(1, 0, 2).status, WorkStatus::kSuccess);
  for (uint32_t mid = 1; mid < 4; ++mid) {  // the memory of one is there for the next
    ranks.request.mid = mid;
    ranks.PostAll(2 + mid);
    site.RunFor(milliseconds(20));
    EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess, 2 + mid));
  }
}

TEST(OffloadStatus, BufferErrorWhenNoSegWasFreeUntilTheDeadline) {
  VirtualSite site({.nodes = 2, .ranks = 2, .engine = {.pool_segs = 4}});
  site.Configure({.nodes = 0b11, .deadline = milliseconds(50)});
  AllRanks<int32_t> ranks(site, 256 * 20, Small);
  ranks.Post(0, 0);
  ranks.Post(0, 1);
  ranks.Post(1, 0);  // rank 1 of node 1 never comes
  site.RunFor(milliseconds(200));
  EXPECT_GT(site.engine(1).stats().pool_exhausted, 0u);
  EXPECT_EQ(site.CompletionOf(1, 0, 1).status, WorkStatus::kBufferError);
}

// A full pool delays a message and does not break it: credits are of completed segs.
TEST(OffloadStatus, AFullPoolIsWaitedFor) {
  VirtualSite site({.nodes = 2, .ranks = 2, .engine = {.pool_segs = 4}});
  site.Configure({.nodes = 0b11});
  AllRanks<int32_t> ranks(site, 256 * 20, Small);
  ranks.Post(0, 0);
  ranks.Post(0, 1);
  ranks.Post(1, 0);
  site.RunFor(milliseconds(20));
  ranks.Post(1, 1);
  site.RunFor(seconds(1));
  EXPECT_GT(site.engine(1).stats().pool_exhausted, 0u);
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
}

TEST(OffloadStatus, LengthMismatchHarmsOnlyWhoHasIt) {
  VirtualSite site({.ranks = 2});
  AllRanks<int32_t> ranks(site, 100, Small);
  ranks.Post(0, 0);
  WorkRequest other = ranks.RequestOf(0, 1, 5);
  other.length = 396;
  EXPECT_EQ(EndOf(site, 0, 1, other), WorkStatus::kLengthMismatch);
  EXPECT_EQ(site.CountOf(0, 0, 1), 0u);
  ranks.Post(0, 1);
  site.RunFor(milliseconds(1));
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
}

TEST(OffloadStatus, LengthMismatchOfImpossibleLengths) {
  VirtualSite site({.ranks = 1, .engine = {.max_message_bytes = 4096}});
  AllRanks<int32_t> ranks(site, 2048, Small);
  uint64_t wr_id = 10;
  for (const uint64_t length : {uint64_t{0}, uint64_t{6}, uint64_t{8192}, UINT64_MAX - 3}) {
    WorkRequest request = ranks.RequestOf(0, 0, wr_id++);
    request.length = length;
    EXPECT_EQ(EndOf(site, 0, 0, request), WorkStatus::kLengthMismatch) << length;
  }
  WorkRequest send = ranks.RequestOf(0, 0, 98);  // an ordinary datagram has at most a seg
  send.opcode = Opcode::kSend;
  send.length = 1028;
  EXPECT_EQ(EndOf(site, 0, 0, send), WorkStatus::kLengthMismatch);
  WorkRequest beyond = ranks.RequestOf(0, 0, 99);
  beyond.length = 4096;
  beyond.first_seg = 3;
  beyond.seg_count = 2;
  EXPECT_EQ(EndOf(site, 0, 0, beyond), WorkStatus::kLengthMismatch);
}

TEST(OffloadStatus, OpMismatch) {
  VirtualSite site({.ranks = 2});
  AllRanks<float> ranks(site, 100, Fraction);
  ranks.Post(0, 0);
  WorkRequest other = ranks.RequestOf(0, 1, 5);
  other.op = ReduceOp::kMax;
  EXPECT_EQ(EndOf(site, 0, 1, other), WorkStatus::kOpMismatch);
  other.wr_id = 6;  // float has no xor
  other.mid = 1;
  other.op = ReduceOp::kXor;
  EXPECT_EQ(EndOf(site, 0, 1, other), WorkStatus::kOpMismatch);
}

TEST(OffloadStatus, ProtectionError) {
  VirtualSite site({.ranks = 2});
  AllRanks<int32_t> ranks(site, 100, Small);
  const auto status_of = [&](uint64_t wr_id, auto change) {
    WorkRequest request = ranks.RequestOf(0, 0, wr_id);
    change(request);
    return EndOf(site, 0, 0, request);
  };
  constexpr WorkStatus kWrong = WorkStatus::kProtectionError;
  EXPECT_EQ(status_of(10, [](WorkRequest& r) { r.send.key = 0; }), kWrong);
  EXPECT_EQ(status_of(11, [&](WorkRequest& r) { r.send.key = ranks.at(0, 1).send_key; }), kWrong);
  EXPECT_EQ(status_of(12, [](WorkRequest& r) { r.receive.offset = 4; }), kWrong);
  EXPECT_EQ(status_of(13, [](WorkRequest& r) { r.send.offset = UINT64_MAX; }), kWrong);
  EXPECT_EQ(status_of(14, [](WorkRequest& r) { r.send.key += 0x10000; }), kWrong);
  // A key of before.
  const uint32_t old = ranks.at(0, 0).send_key;
  ASSERT_TRUE(site.engine(0).Deregister(0, old).ok());
  EXPECT_EQ(status_of(15, [&](WorkRequest& r) { r.send.key = old; }), kWrong);
}

TEST(OffloadStatus, ProtectionErrorOfMemoryThatChangesInMidMessage) {
  VirtualSite site({.ranks = 2});
  AllRanks<int32_t> ranks(site, 512, Small);
  WorkRequest half = ranks.RequestOf(0, 0, 1);
  half.seg_count = 1;
  site.Post(0, 0, half);
  EXPECT_EQ(site.engine(0).Deregister(0, ranks.at(0, 0).send_key).code(), StatusCode::kFailedPrecondition);
  WorkRequest other = ranks.RequestOf(0, 0, 2);
  other.first_seg = 1;
  other.send.key = ranks.at(0, 0).receive_key;
  EXPECT_EQ(EndOf(site, 0, 0, other), WorkStatus::kProtectionError);
}

TEST(OffloadStatus, BadRank) {
  VirtualSite site({.ranks = 2});
  AllRanks<int32_t> ranks(site, 100, Small);
  uint64_t wr_id = 10;
  for (const uint64_t mask : {uint64_t{0b10}, uint64_t{0b101}, uint64_t{1} << 63 | 1}) {
    WorkRequest request = ranks.RequestOf(0, 0, wr_id++);
    request.ranks = mask;
    EXPECT_EQ(EndOf(site, 0, 0, request), WorkStatus::kBadRank) << mask;
  }
  WorkRequest root = ranks.RequestOf(0, 0, 50);
  root.opcode = Opcode::kBroadcast;
  root.root_rank = 2;
  EXPECT_EQ(EndOf(site, 0, 0, root), WorkStatus::kBadRank);
  root.wr_id = 51;
  root.root_rank = 200;
  EXPECT_EQ(EndOf(site, 0, 0, root), WorkStatus::kBadRank);
}

TEST(OffloadStatus, BadNode) {
  VirtualSite site({.nodes = 2, .ranks = 1});
  AllRanks<int32_t> ranks(site, 100, Small);
  uint64_t wr_id = 10;
  for (const uint64_t mask : {uint64_t{0b10}, uint64_t{0b101}, uint64_t{1} << 40 | 1}) {
    WorkRequest request = ranks.RequestOf(0, 0, wr_id++);
    request.nodes = mask;
    EXPECT_EQ(EndOf(site, 0, 0, request), WorkStatus::kBadNode) << mask;
  }
  // A tree's root is the only one that all nodes speak to.
  site.Configure({.nodes = 0b11, .route = Route::kTree, .root_node = 0});
  WorkRequest rooted = ranks.RequestOf(0, 0, 59);
  rooted.opcode = Opcode::kReduce;
  rooted.root_node = 1;
  EXPECT_EQ(EndOf(site, 0, 0, rooted), WorkStatus::kBadNode);
  WorkRequest send{.wr_id = 60, .opcode = Opcode::kSend, .root_node = 7, .length = 4};
  send.send.key = ranks.at(0, 0).send_key;
  EXPECT_EQ(EndOf(site, 0, 0, send), WorkStatus::kBadNode);
}

TEST(OffloadStatus, TimeoutNamesWhoWasMissing) {
  VirtualSite site({.ranks = 3});
  AllRanks<int32_t> ranks(site, 100, Small);
  ranks.request.deadline = milliseconds(30);
  ranks.Post(0, 0);
  ranks.Post(0, 2);
  site.RunFor(milliseconds(29));
  EXPECT_EQ(site.CountOf(0, 0, 1), 0u);
  site.RunFor(milliseconds(2));
  EXPECT_EQ(site.CompletionOf(0, 2, 1).status, WorkStatus::kTimeout);
  EXPECT_EQ(site.CompletionOf(0, 2, 1).missing_ranks, 0b010u);
}

// The root has node 1's sum, and misses node 2 alone.
TEST(OffloadStatus, TimeoutDoesNotNameANodeWhoseSumIsHere) {
  VirtualSite site({.nodes = 3, .ranks = 1});
  site.Configure({.nodes = 0b111, .route = Route::kTree, .root_node = 0, .deadline = milliseconds(50)});
  AllRanks<int32_t> ranks(site, 256, Small);
  ranks.Post(0, 0);
  ranks.Post(1, 0);
  site.RunFor(milliseconds(100));
  EXPECT_EQ(site.CompletionOf(0, 0, 1).status, WorkStatus::kTimeout);
  EXPECT_EQ(site.CompletionOf(0, 0, 1).missing_nodes, 0b100u);
}

// Node 1 has a result, which has all nodes in it, when the rest fails.
TEST(OffloadStatus, TimeoutDoesNotNameANodeThatIsInAResult) {
  VirtualSite site({.nodes = 3, .ranks = 1});
  site.Configure({.nodes = 0b111, .route = Route::kTree, .root_node = 0, .deadline = milliseconds(50)});
  AllRanks<int32_t> ranks(site, 512, Small);
  ranks.Post(0, 0);
  ranks.Post(1, 0);
  WorkRequest half = ranks.RequestOf(2, 0);
  half.seg_count = 1;
  site.Post(2, 0, half);
  site.RunFor(milliseconds(100));
  EXPECT_EQ(site.CompletionOf(1, 0, 1).segs_done, 1u);
  EXPECT_EQ(site.CompletionOf(1, 0, 1).missing_nodes, 0u);
}

// A deadline that is nearly the end of time is as far away as one of a year.
TEST(OffloadStatus, TimeoutAfterAYearAtMost) {
  for (const bool of_job : {false, true}) {
    VirtualSite site({.ranks = 2});
    AllRanks<int32_t> ranks(site, 256, Small);
    const auto longest = Duration(INT64_MAX - 1);
    site.Configure({.nodes = 1, .deadline = of_job ? longest : seconds(1)});
    if (!of_job) ranks.request.deadline = longest;
    ranks.Post(0, 0);
    site.RunFor(seconds(900));
    EXPECT_EQ(site.CountOf(0, 0, 1), 0u);
    site.RunFor(std::chrono::hours(24 * 366));
    EXPECT_EQ(site.CompletionOf(0, 0, 1).status, WorkStatus::kTimeout);
  }
}

TEST(OffloadStatus, PeerDeadWhenARankDies) {
  VirtualSite site({.nodes = 3, .ranks = 2});
  site.Configure({.nodes = 0b111});
  AllRanks<int32_t> ranks(site, 1000, Small);
  ranks.Post(0, 0);
  ranks.Post(1, 0);
  ranks.Post(1, 1);
  site.RunFor(milliseconds(1));
  site.engine(0).RankGone(site.now(), 1);
  site.RunFor(milliseconds(1));
  EXPECT_EQ(site.CompletionOf(0, 0, 1).status, WorkStatus::kPeerDead);
  EXPECT_EQ(site.CompletionOf(0, 0, 1).missing_ranks, 0b10u);
  EXPECT_EQ(site.CompletionOf(1, 1, 1).status, WorkStatus::kPeerDead);  // the other node gets the abort
  EXPECT_EQ(site.CompletionOf(1, 1, 1).missing_nodes, 0b001u);  // and not node 2, which is not here yet
  EXPECT_EQ(site.SegsInUse(), 0u);
}

// All sums of node 1 are acknowledged: it has nothing to send that would be answered with the end.
TEST(OffloadStatus, PeerDeadAtOtherNodesThoughTheAbortIsLost) {
  VirtualSite site({.nodes = 2, .ranks = 2});
  site.Configure({.nodes = 0b11, .route = Route::kTree, .root_node = 0});
  AllRanks<int32_t> ranks(site, 1000, Small);
  ranks.Post(0, 0);
  ranks.Post(1, 0);
  ranks.Post(1, 1);
  site.RunFor(milliseconds(10));
  int aborts = 0;
  site.filter = [&aborts](uint8_t, uint8_t, std::vector<uint8_t>& datagram) {
    return Parse(datagram)->header.kind != PacketKind::kAbort || ++aborts > 3;
  };
  site.engine(0).RankGone(site.now(), 1);
  site.RunFor(milliseconds(100));
  EXPECT_EQ(site.CompletionOf(1, 1, 1).status, WorkStatus::kPeerDead);
  site.RunFor(seconds(20));
  EXPECT_EQ(aborts, 4);  // and no more
}

TEST(OffloadStatus, PeerDeadWhenANodeDies) {
  VirtualSite site({.nodes = 3, .ranks = 1});
  site.Configure({.nodes = 0b111});
  AllRanks<int32_t> ranks(site, 1000, Small);
  ranks.Post(0, 0);
  ranks.Post(1, 0);
  site.RunFor(milliseconds(1));
  site.Kill(2);
  for (const uint8_t node : std::initializer_list<uint8_t>{0, 1}) site.engine(node).NodeGone(site.now(), 2);
  site.RunFor(milliseconds(1));
  EXPECT_EQ(site.CompletionOf(0, 0, 1).status, WorkStatus::kPeerDead);
  EXPECT_EQ(site.CompletionOf(1, 0, 1).missing_nodes, 0b100u);
  // The ring of those who are left goes on.
  ranks.request.nodes = 0b011;
  ranks.request.generation = 1;
  ranks.Post(0, 0, 2);
  ranks.Post(1, 0, 2);
  site.RunFor(milliseconds(20));
  EXPECT_EQ(site.CompletionOf(1, 0, 2).status, WorkStatus::kSuccess);
  EXPECT_EQ(ranks.at(0, 0).receive[3], 1000 + 2 * 3);
}

TEST(OffloadStatus, Overflow) {
  VirtualSite site({.ranks = 2});
  AllRanks<int32_t> ranks(site, 10, Small);
  for (uint32_t mid = 0; mid <= 64; ++mid) {
    ranks.request.mid = mid;
    ranks.Post(0, 0, mid);
  }
  site.RunFor(milliseconds(1));
  EXPECT_EQ(site.CountOf(0, 0, 63), 0u);
  EXPECT_EQ(site.CompletionOf(0, 0, 64).status, WorkStatus::kOverflow);
}

// They are refused before they take the place of a message.
TEST(OffloadStatus, OverflowIsNotForPacketsThatCannotBe) {
  VirtualSite site({.nodes = 2, .ranks = 1});
  site.Configure({.nodes = 0b11});
  Header h;
  h.nodes = 0b11;
  h.contributors = 1;
  h.participants = 1;
  h.length = 1 << 20;
  h.type = DataType::kInt32;
  std::vector<uint8_t> packet(kHeaderBytes);
  for (uint32_t mid = 100; mid < 200; ++mid) {
    h.mid = mid;
    h.seg_bytes = mid % 2 == 0 ? 512 : 1024;  // another seg size; no payload
    Encapsulate(h, {}, packet);
    site.Inject(1, packet);
  }
  AllRanks<int32_t> ranks(site, 256, Small);
  ranks.PostAll();
  site.RunFor(milliseconds(20));
  EXPECT_EQ(site.engine(1).stats().mismatches, 100u);
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
}

// A node that holds the key, and speaks of messages that will never be.
void Begin(VirtualSite& site, uint32_t mid, uint64_t length) {
  Header h;
  h.nodes = 0b11;
  h.contributors = 1;
  h.participants = 1;
  h.type = DataType::kInt32;
  h.seg_bytes = 1024;
  h.length = length;
  h.mid = mid;
  std::vector<uint8_t> payload(1024), packet(kHeaderBytes + payload.size());
  Encapsulate(h, payload, packet);
  site.Inject(1, packet);
}

WorkStatus IsKnown(VirtualSite& site, uint32_t mid) {
  return EndOf(site, 1, 0, {.wr_id = 5000 + mid, .opcode = Opcode::kQuery, .mid = mid});
}

TEST(OffloadBounds, WhatPacketsHaveBegunHasAShareOfTheTablesUntilItIsPosted) {
  VirtualSite site({.nodes = 2, .ranks = 1});
  site.Configure({.nodes = 0b11, .deadline = seconds(1)});
  Begin(site, 1, uint64_t{1} << 30);  // 148 MiB of tables
  EXPECT_EQ(IsKnown(site, 1), WorkStatus::kFlushed);
  EXPECT_EQ(site.engine(1).stats().begins_refused, 1u);
  for (uint32_t mid = 2; mid <= 5; ++mid) Begin(site, mid, uint64_t{32} << 20);
  EXPECT_EQ(IsKnown(site, 4), WorkStatus::kSuccess);
  EXPECT_EQ(IsKnown(site, 5), WorkStatus::kFlushed);  // the fourth of these
  EXPECT_EQ(site.engine(1).stats().begins_refused, 2u);
  site.RunFor(seconds(3));
  Begin(site, 6, uint64_t{32} << 20);  // the others are forgotten
  EXPECT_EQ(IsKnown(site, 6), WorkStatus::kSuccess);
}

TEST(OffloadBounds, WhatPacketsHaveBegunLeavesRoomForWhatRanksPost) {
  VirtualSite site({.nodes = 2, .ranks = 1});
  site.Configure({.nodes = 0b11});
  for (uint32_t mid = 100; mid < 200; ++mid) Begin(site, mid, 4096);
  EXPECT_EQ(site.engine(1).stats().begins_refused, 100u - 48);
  AllRanks<int32_t> ranks(site, 256, Small);
  ranks.PostAll();
  site.RunFor(milliseconds(20));
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
}

TEST(OffloadBounds, WhatRanksHavePostedTakesNothingFromWhatPacketsMayBegin) {
  VirtualSite site({.nodes = 2, .ranks = 1});
  site.Configure({.nodes = 0b11});
  AllRanks<int32_t> ranks(site, 256, Small);
  for (uint32_t mid = 0; mid < 48; ++mid) {
    ranks.request.mid = mid;
    ranks.Post(1, 0, mid);
  }
  Begin(site, 100, 4096);
  EXPECT_EQ(site.engine(1).stats().begins_refused, 0u);
}

// A message that is too large to begin before it is posted: what is refused comes again. An aggregator has no
// rank that could post it.
TEST(OffloadBounds, ALargeMessageIsRefusedUntilItIsPosted) {
  for (const bool aggregator : {false, true}) {
    VirtualSiteOptions options{.nodes = 2, .ranks = 1, .aggregator = aggregator};
    options.engine.seg_bytes = 64;
    options.engine.max_message_bytes = uint64_t{8} << 20;
    VirtualSite site(options);
    JobConfig job{.nodes = site.all_nodes()};
    if (aggregator) job.route = Route::kTree, job.root_node = 2;
    site.Configure(job);
    AllRanks<int32_t> ranks(site, size_t{2} << 20, Small);
    ranks.Post(0, 0);
    site.RunFor(milliseconds(30));
    EXPECT_EQ(site.engine(1).stats().begins_refused > 0, !aggregator);
    ranks.Post(1, 0);
    site.RunFor(seconds(5));
    EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
    EXPECT_EQ(ranks.at(0, 0).receive[1], Small(0, 0, 1) + Small(1, 0, 1));
  }
}

TEST(OffloadStatus, UnknownFlagsAreRefused) {
  VirtualSite site({.ranks = 1});
  AllRanks<int32_t> ranks(site, 256, Small);
  for (const uint8_t flag : std::initializer_list<uint8_t>{4, 8, 16, 32, 64, 128}) {
    WorkRequest request = ranks.RequestOf(0, 0);
    request.flags = flag | WorkRequest::kDeterministic;
    EXPECT_EQ(site.engine(0).Post(site.now(), 0, request).code(), StatusCode::kInvalidArgument) << int{flag};
  }
  EXPECT_EQ(site.engine(0).stats().requests_refused, 6u);
}

TEST(OffloadStatus, OptionsThatCannotWorkAreRefused) {
  const auto valid = [](auto change) {
    EngineOptions options;
    options.nodes = 0b111;
    change(options);
    return Engine::Validate(options).ok();
  };
  EXPECT_TRUE(valid([](EngineOptions& o) { o.pool_segs = 6; }));
  EXPECT_FALSE(valid([](EngineOptions& o) { o.pool_segs = 5; }));  // two for each node
  EXPECT_FALSE(valid([](EngineOptions& o) { o.pool_segs = 65535; }));
  EXPECT_TRUE(valid([](EngineOptions& o) { o.max_message_bytes = uint64_t{1} << 40; }));
  for (const uint64_t bytes : {UINT64_MAX, UINT64_MAX - 1023, uint64_t{1} << 42}) {
    EXPECT_FALSE(valid([&](EngineOptions& o) { o.max_message_bytes = bytes; })) << bytes;
  }
}

TEST(OffloadStatus, OverflowOfJobs) {
  VirtualSite site({.ranks = 2});
  AllRanks<int32_t> ranks(site, 10, Small);
  for (uint16_t jid = 0; jid <= 16; ++jid) {
    ranks.request.jid = jid;
    ranks.Post(0, 0, jid);
  }
  site.RunFor(milliseconds(1));
  EXPECT_EQ(site.CompletionOf(0, 0, 16).status, WorkStatus::kOverflow);
}

TEST(OffloadStatus, Cancelled) {
  VirtualSite site({.nodes = 2, .ranks = 2});
  site.Configure({.nodes = 0b11});
  AllRanks<int32_t> ranks(site, 1000, Small);
  ranks.Post(0, 0);
  ranks.Post(0, 1);
  ranks.Post(1, 0);
  site.RunFor(milliseconds(1));
  EXPECT_EQ(EndOf(site, 1, 0, {.wr_id = 9, .opcode = Opcode::kCancel}), WorkStatus::kSuccess);
  EXPECT_EQ(site.CompletionOf(1, 0, 1).status, WorkStatus::kCancelled);
  EXPECT_EQ(site.CompletionOf(0, 1, 1).status, WorkStatus::kCancelled);
  EXPECT_EQ(site.SegsInUse(), 0u);
  // A rank that comes later gets the same status.
  EXPECT_EQ(EndOf(site, 1, 1, ranks.RequestOf(1, 1)), WorkStatus::kCancelled);
}

TEST(OffloadStatus, FlushedWhenTheRankCloses) {
  VirtualSite site({.ranks = 2});
  AllRanks<int32_t> ranks(site, 1000, Small);
  WorkRequest receive{.wr_id = 3, .opcode = Opcode::kReceive, .length = 4};
  receive.receive.key = ranks.at(0, 0).receive_key;
  ranks.Post(0, 0);
  site.Post(0, 0, receive);
  site.engine(0).RankGone(site.now(), 0);
  site.RunFor(milliseconds(1));
  EXPECT_EQ(site.CompletionOf(0, 0, 1).status, WorkStatus::kFlushed);
  EXPECT_EQ(site.CompletionOf(0, 0, 3).status, WorkStatus::kFlushed);
}

TEST(OffloadStatus, FlushedWhenTheMessageIsOverAlready) {
  VirtualSite site({.ranks = 1});
  AllRanks<int32_t> ranks(site, 10, Small);
  ranks.Post(0, 0, 1);
  site.RunFor(milliseconds(1));
  EXPECT_EQ(EndOf(site, 0, 0, ranks.RequestOf(0, 0, 2)), WorkStatus::kFlushed);
  // Too old to be remembered: refused, and not begun anew.
  ranks.request.mid = 2000;
  ranks.Post(0, 0, 3);
  site.RunFor(milliseconds(1));
  ranks.request.mid = 500;
  ranks.Post(0, 0, 4);
  site.RunFor(milliseconds(1));
  EXPECT_EQ(site.CompletionOf(0, 0, 3).status, WorkStatus::kSuccess);
  EXPECT_EQ(site.CompletionOf(0, 0, 4).status, WorkStatus::kFlushed);
}

TEST(OffloadStatus, PartialAtTheDeadline) {
  VirtualSite site({.ranks = 3});
  AllRanks<int32_t> ranks(site, 1000, Small);
  ranks.request.deadline = milliseconds(30);
  ranks.request.flags = WorkRequest::kAllowPartial;
  ranks.Post(0, 0);
  ranks.Post(0, 2);
  site.RunFor(milliseconds(31));
  const Completion c = site.CompletionOf(0, 0, 1);
  EXPECT_EQ(c.status, WorkStatus::kPartial);
  EXPECT_EQ(c.reason, Reason::kDone);
  EXPECT_EQ(c.missing_ranks, 0b010u);
  EXPECT_EQ(ranks.at(0, 2).receive[5], 200 + 2 * 5);
  EXPECT_EQ(EndOf(site, 0, 1, ranks.RequestOf(0, 1)), WorkStatus::kFlushed);
}

TEST(OffloadStatus, PartialWithoutADeadRank) {
  VirtualSite site({.ranks = 3});
  AllRanks<int32_t> ranks(site, 1000, Small);
  ranks.request.op = ReduceOp::kAverage;
  ranks.request.flags = WorkRequest::kAllowPartial;
  ranks.Post(0, 0);
  site.engine(0).RankGone(site.now(), 1);
  EXPECT_EQ(EndOf(site, 0, 2, ranks.RequestOf(0, 2)), WorkStatus::kPartial);
  EXPECT_EQ(site.CompletionOf(0, 2, 1).missing_ranks, 0b010u);
  EXPECT_EQ(ranks.at(0, 0).receive[4], (200 + 2 * 4) / 2);  // of two
}

// It had posted everything: its memory may be gone, so nothing of it is read or written.
TEST(OffloadStatus, ADeadRanksMemoryIsNotTouched) {
  VirtualSite site({.ranks = 3});
  AllRanks<int32_t> ranks(site, 1000, Small);
  ranks.request.flags = WorkRequest::kAllowPartial;
  ranks.Post(0, 0);
  ranks.Post(0, 1);
  site.engine(0).RankGone(site.now(), 1);
  EXPECT_EQ(EndOf(site, 0, 2, ranks.RequestOf(0, 2)), WorkStatus::kPartial);
  EXPECT_EQ(ranks.at(0, 2).receive[4], 200 + 2 * 4);
  EXPECT_EQ(ranks.at(0, 1).receive, std::vector<int32_t>(1000));
}

// The node's sums stand in the memory of the rank that was first: without it nothing goes on.
TEST(OffloadStatus, PeerDeadWhenTheRankThatHoldsTheSumsDies) {
  VirtualSite site({.nodes = 2, .ranks = 2});
  site.Configure({.nodes = 0b11});
  AllRanks<int32_t> ranks(site, 256, Small);
  ranks.request.flags = WorkRequest::kAllowPartial;
  ranks.Post(0, 0);
  ranks.Post(0, 1);
  site.engine(0).RankGone(site.now(), 0);
  site.RunFor(milliseconds(1));
  EXPECT_EQ(site.CompletionOf(0, 1, 1).status, WorkStatus::kPeerDead);
  EXPECT_EQ(site.CompletionOf(0, 1, 1).missing_ranks, 0b01u);
}

// Segs 3 and 1 are done without the dead rank; at the deadline 2 and 0 are, and those not once more.
TEST(OffloadStatus, PartialWithoutADeadRankAndALateOne) {
  VirtualSite site({.ranks = 3});
  AllRanks<int32_t> ranks(site, 256 * 4, Small);
  ranks.request.flags = WorkRequest::kAllowPartial;
  ranks.request.deadline = milliseconds(30);
  ranks.Post(0, 0);
  site.engine(0).RankGone(site.now(), 1);
  for (const uint32_t sid : {3u, 1u}) {
    WorkRequest piece = ranks.RequestOf(0, 2, 10 + sid);
    piece.first_seg = sid;
    piece.seg_count = 1;
    EXPECT_EQ(EndOf(site, 0, 2, piece), WorkStatus::kPartial);
  }
  site.RunFor(milliseconds(40));
  const Completion c = site.CompletionOf(0, 0, 1);
  EXPECT_EQ(c.status, WorkStatus::kPartial);
  EXPECT_EQ(c.missing_ranks, 0b110u);
  for (size_t i = 0; i < 1024; ++i) {
    const auto value = static_cast<int32_t>(i % 97);
    ASSERT_EQ(ranks.at(0, 0).receive[i], i / 256 % 2 == 1 ? 200 + 2 * value : value) << i;
  }
}

TEST(OffloadStatus, AForgedNumberOfParticipantsIsRefused) {
  VirtualSite site({.nodes = 2, .ranks = 1, .aggregator = true});
  site.Configure({.nodes = 0b111, .route = Route::kTree, .root_node = 2});
  AllRanks<int32_t> ranks(site, 100, Small);
  ranks.request.op = ReduceOp::kAverage;
  site.filter = [&](uint8_t, uint8_t to, std::vector<uint8_t>& datagram) {
    auto packet = Parse(datagram);
    if (to != 2 || packet->header.kind != PacketKind::kPartial) return true;
    for (const uint32_t participants : {0u, UINT32_MAX}) {
      packet->header.participants = participants;
      std::vector<uint8_t> forged(datagram.size());
      Encapsulate(packet->header, packet->payload, forged);
      site.Inject(2, forged);
    }
    return true;
  };
  site.RunFor(milliseconds(1));
  ranks.PostAll();
  site.RunFor(milliseconds(20));
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
  EXPECT_EQ(ranks.at(0, 0).receive[9], (1000 + 2 * 9) / 2);
  EXPECT_GE(site.engine(2).stats().packets_refused, 4u);
}

// All owners finish without the late node; both completions name it.
TEST(OffloadStatus, PartialWithoutALateNode) {
  VirtualSite site({.nodes = 3, .ranks = 2});
  site.Configure({.nodes = 0b111});
  AllRanks<int32_t> ranks(site, 256 * 9, Small);
  ranks.request.deadline = milliseconds(40);
  ranks.request.flags = WorkRequest::kAllowPartial;
  for (const uint8_t node : std::initializer_list<uint8_t>{0, 1}) {
    for (const uint8_t rank : std::initializer_list<uint8_t>{0, 1}) ranks.Post(node, rank);
  }
  site.RunFor(milliseconds(79));
  EXPECT_EQ(site.CountOf(0, 0, 1), 0u);  // segs that node 2 owns have no owner
  site.RunFor(milliseconds(10));
  EXPECT_EQ(site.CompletionOf(0, 0, 1).status, WorkStatus::kTimeout);
  EXPECT_EQ(site.CompletionOf(0, 0, 1).missing_nodes & 0b100, 0b100u);
  EXPECT_GT(site.CompletionOf(0, 0, 1).segs_done, 0u);
}

TEST(OffloadStatus, PartialOfATreeWithoutALateNode) {
  VirtualSite site({.nodes = 3, .ranks = 2});
  site.Configure({.nodes = 0b111, .route = Route::kTree, .root_node = 0});
  AllRanks<int32_t> ranks(site, 256 * 9, Small);
  ranks.request.deadline = milliseconds(40);
  ranks.request.flags = WorkRequest::kAllowPartial;
  for (const uint8_t node : std::initializer_list<uint8_t>{0, 1}) {
    for (const uint8_t rank : std::initializer_list<uint8_t>{0, 1}) ranks.Post(node, rank);
  }
  site.RunFor(milliseconds(100));
  EXPECT_EQ(site.CompletionOf(1, 0, 1).status, WorkStatus::kPartial);
  EXPECT_EQ(site.CompletionOf(1, 0, 1).missing_nodes, 0b100u);
  EXPECT_EQ(ranks.at(1, 1).receive[300], 2 * 1000 + 200 + 4 * (300 % 97));
}

// Packets of others have begun the message long before: the deadline is the request's all the same.
TEST(OffloadStatus, APartialMessageEndsByItsOwnDeadlineWhoeverBeganIt) {
  VirtualSite site({.nodes = 3, .ranks = 1});
  site.Configure({.nodes = 0b111, .route = Route::kTree, .root_node = 0});
  AllRanks<int32_t> ranks(site, 256, Small);
  ranks.request.deadline = milliseconds(40);
  ranks.request.flags = WorkRequest::kAllowPartial;
  ranks.Post(1, 0);
  site.RunFor(milliseconds(35));
  site.filter = [](uint8_t, uint8_t, std::vector<uint8_t>&) { return false; };  // nor is there another end
  ranks.Post(0, 0);
  site.RunFor(milliseconds(81));
  EXPECT_EQ(site.CountOf(0, 0, 1), 1u);
}

// The root has a result without node 2, which has reached no node, when node 2's sum comes.
TEST(OffloadStatus, PartialStaysAsItIsWhenTheLateSumComes) {
  VirtualSite site({.nodes = 3, .ranks = 1});
  site.Configure({.nodes = 0b111, .route = Route::kTree, .root_node = 0});
  AllRanks<int32_t> ranks(site, 256, Small);
  ranks.request.deadline = milliseconds(400);
  ranks.request.flags = WorkRequest::kAllowPartial;
  site.filter = [](uint8_t, uint8_t, std::vector<uint8_t>& datagram) {
    return Parse(datagram)->header.kind != PacketKind::kResult;
  };
  ranks.Post(0, 0);
  ranks.Post(1, 0);
  site.RunFor(milliseconds(560));
  ranks.Post(2, 0);
  site.RunFor(milliseconds(40));
  EXPECT_EQ(site.CountOf(0, 0, 1), 0u);
  site.filter = nullptr;
  site.RunFor(seconds(1));
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kPartial));
  EXPECT_EQ(site.CompletionOf(0, 0, 1).missing_nodes, 0b100u);
  for (uint8_t node = 0; node < 3; ++node) EXPECT_EQ(ranks.at(node, 0).receive[5], 1000 + 2 * 5);
}

TEST(OffloadStatus, EveryStatusHasItsName) {
  EXPECT_EQ(WorkStatusName(WorkStatus::kSuccess), "success");
  EXPECT_EQ(WorkStatusName(WorkStatus::kPeerDead), "peer_dead");
  EXPECT_EQ(WorkStatusName(WorkStatus::kPartial), "partial");
  EXPECT_EQ(WorkStatusName(static_cast<WorkStatus>(99)), "unknown");
}

}  // namespace
}  // namespace longhaul::offload
