// Collective offload with work requests and completions: a test for every requirement C1-C10, and for the
// defects of its source (docs/internals/offload.md).
#include <gtest/gtest.h>

#include <utility>

#include "tests/offload/all_reduce.h"

namespace longhaul::offload {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(OffloadC1, AWorkRequestIsAllThatAnApplicationPosts) {
  VirtualSite site({.ranks = 2});
  AllRanks<int32_t> ranks(site, 100, Small);
  EXPECT_TRUE(site.engine(0).Post(site.now(), 0, ranks.RequestOf(0, 0)).ok());
  EXPECT_TRUE(site.engine(0).Post(site.now(), 1, ranks.RequestOf(0, 1)).ok());
  site.RunFor(microseconds(1));
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
}

//   rank - engine 0 ┐
//                   ├ engine 2, without a host
//   rank - engine 1 ┘
TEST(OffloadC1, ADeviceWithoutAHostIsConfiguredByAPacket) {
  VirtualSite site({.nodes = 2, .ranks = 1, .aggregator = true});
  AllRanks<int32_t> ranks(site, 5000, Small);
  const JobConfig tree{.nodes = 0b111, .route = Route::kTree, .root_node = 2};
  // Without it the device takes nothing.
  WorkRequest config;
  config.opcode = Opcode::kConfig;
  config.config = &tree;
  config.root_node = WorkRequest::kThisNode;
  site.Post(0, 0, config);
  site.Post(1, 0, config);
  ranks.PostAll();
  site.RunFor(milliseconds(20));
  EXPECT_EQ(site.CountOf(0, 0, 1), 0u);
  EXPECT_GT(site.engine(2).stats().packets_refused, 0u);
  EXPECT_EQ(site.engine(2).stats().segs_in_use, 0u);

  config.root_node = 2;
  config.wr_id = 77;
  site.Post(1, 0, config);
  site.RunFor(seconds(2));
  EXPECT_EQ(site.CompletionOf(1, 0, 77).status, WorkStatus::kSuccess);
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
  EXPECT_EQ(site.engine(2).stats().requests, 0u);
}

TEST(OffloadC1, AConfigurationPacketThatIsLostComesAgain) {
  VirtualSite site({.nodes = 2, .ranks = 1, .aggregator = true});
  int lost = 0;
  site.filter = [&](uint8_t, uint8_t, std::vector<uint8_t>&) { return ++lost > 5; };
  site.Configure({.nodes = 0b111, .route = Route::kTree, .root_node = 2});
  site.RunFor(seconds(3));
  EXPECT_EQ(site.CompletionOf(0, 0, UINT64_MAX - 1).status, WorkStatus::kSuccess);
}

// Copies that the network kept do not bring back the configurations of before.
TEST(OffloadC1, AnOldConfigurationPacketChangesNothing) {
  VirtualSite site({.nodes = 2, .ranks = 1, .aggregator = true});
  std::vector<std::vector<uint8_t>> sent;
  site.filter = [&](uint8_t, uint8_t to, std::vector<uint8_t>& datagram) {
    if (to == 2 && Parse(datagram)->header.kind == PacketKind::kConfig) sent.push_back(datagram);
    return true;
  };
  const JobConfig all{.nodes = 0b111, .route = Route::kTree, .root_node = 2};
  JobConfig some = all;
  some.nodes = 0b101;
  const auto configure = [&](uint8_t from, const JobConfig& config) {
    site.Post(from, 0, {.opcode = Opcode::kConfig, .root_node = 2, .config = &config});
    site.RunFor(seconds(1));
  };
  site.Configure(all);
  configure(0, some);
  configure(0, some);
  configure(1, all);
  ASSERT_EQ(sent.size(), 4u);
  const uint64_t packets = site.engine(2).stats().packets_sent;
  for (size_t i = 1; i < 3; ++i) site.Inject(2, sent[i]);  // the last of node 0, and the one before
  AllRanks<int32_t> ranks(site, 256, Small);
  ranks.PostAll();
  site.RunFor(seconds(1));
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
  EXPECT_EQ(site.engine(2).stats().packets_sent, packets + 2 + 2 + 2);  // to all, an answer; two results
}

// Neither an answer to an earlier configuration nor one of another node completes the one that is pending.
TEST(OffloadC1, AnAcknowledgementIsOfOneConfiguration) {
  VirtualSite site({.nodes = 2, .ranks = 1, .aggregator = true});
  const JobConfig config{.nodes = 0b111, .route = Route::kTree, .root_node = 2};
  std::vector<uint8_t> first, sent;
  site.filter = [&](uint8_t, uint8_t to, std::vector<uint8_t>& datagram) {
    if (to == 0 && first.empty()) first = datagram;
    if (to == 2) sent = datagram;
    return to != 2 || first.empty();
  };
  site.Configure(config);
  site.RunFor(milliseconds(1));
  site.Post(0, 0, {.wr_id = 7, .opcode = Opcode::kConfig, .root_node = 2, .config = &config});
  site.RunFor(milliseconds(1));
  Header h = Parse(sent)->header;
  h.kind = PacketKind::kAckConfig;
  std::vector<uint8_t> ack(kHeaderBytes);
  const auto answer_of = [&](uint8_t node) {
    h.source = node;
    Encapsulate(h, {}, ack);
    site.Inject(0, ack);
    site.RunFor(milliseconds(1));
  };
  site.Inject(0, first);
  answer_of(1);
  EXPECT_EQ(site.CountOf(0, 0, 7), 0u);
  answer_of(2);
  EXPECT_EQ(site.CompletionOf(0, 0, 7).status, WorkStatus::kSuccess);
}

TEST(OffloadC1, ADeviceWithRanksIsNotConfiguredByAPacket) {
  VirtualSite site({.nodes = 2, .ranks = 1});
  const JobConfig config{.nodes = 0b11, .deadline = milliseconds(100)};
  site.Post(0, 0, {.wr_id = 7, .opcode = Opcode::kConfig, .root_node = 1, .config = &config});
  site.RunFor(seconds(1));
  EXPECT_EQ(site.CompletionOf(0, 0, 7).status, WorkStatus::kTimeout);
  EXPECT_EQ(site.CompletionOf(0, 0, 7).missing_nodes, 0b10u);
  EXPECT_GT(site.engine(1).stats().packets_refused, 0u);
}

TEST(OffloadC2, OrdinaryRequestsTakeTheOrdinaryPath) {
  VirtualSite site({.nodes = 2, .ranks = 2});
  site.Configure({.nodes = 0b11});
  AllRanks<int32_t> ranks(site, 4000, Small);
  std::vector<std::byte> out(300), in(512);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(i * 7);
  WorkRequest receive{.wr_id = 50, .opcode = Opcode::kReceive, .length = 512};
  receive.receive.key = site.Key(1, 1, in);
  WorkRequest send{.wr_id = 60, .opcode = Opcode::kSend, .root_node = 1, .root_rank = 1, .length = 300};
  send.send.key = site.Key(0, 0, out);
  ranks.Post(0, 0);
  site.Post(1, 1, receive);
  site.Post(0, 0, send);  // in the middle of a message
  ranks.Post(0, 1);
  ranks.Post(1, 0);
  ranks.Post(1, 1);
  site.RunFor(milliseconds(50));
  EXPECT_EQ(site.CompletionOf(0, 0, 60).status, WorkStatus::kSuccess);
  EXPECT_EQ(site.CompletionOf(1, 1, 50).bytes, 300u);
  EXPECT_TRUE(std::equal(out.begin(), out.end(), in.begin()));
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
}

// Memory of a pending datagram stays registered until it has been read or written.
TEST(OffloadC2, MemoryOfAnOrdinaryDatagramIsInUse) {
  VirtualSite site({.nodes = 2, .ranks = 2});
  std::vector<std::byte> out(64), in(64);
  WorkRequest receive{.wr_id = 1, .opcode = Opcode::kReceive, .length = 64};
  receive.receive.key = site.Key(1, 1, in);
  WorkRequest send{.wr_id = 2, .opcode = Opcode::kSend, .root_node = 1, .root_rank = 1, .length = 64};
  send.send.key = site.Key(0, 0, out);
  const auto deregister = [&](uint8_t node, uint8_t rank, uint32_t key) {
    return site.engine(node).Deregister(rank, key).code();
  };
  site.Post(1, 1, receive);
  site.Post(0, 0, send);
  EXPECT_EQ(deregister(1, 1, receive.receive.key), StatusCode::kFailedPrecondition);
  EXPECT_EQ(deregister(0, 0, send.send.key), StatusCode::kFailedPrecondition);
  site.RunFor(milliseconds(1));
  EXPECT_EQ(site.CompletionOf(1, 1, 1).status, WorkStatus::kSuccess);
  EXPECT_EQ(deregister(1, 1, receive.receive.key), StatusCode::kOk);
  EXPECT_EQ(deregister(0, 0, send.send.key), StatusCode::kOk);
}

// What is refused, or is too long for its place, holds nothing; nor does a rank that is gone.
TEST(OffloadC2, MemoryOfAnOrdinaryDatagramIsFreedWhenItFails) {
  VirtualSite site({.nodes = 1, .ranks = 2});
  std::vector<std::byte> out(64), in(64);
  WorkRequest receive{.wr_id = 1, .opcode = Opcode::kReceive, .length = 32};
  receive.receive.key = site.Key(0, 1, in);
  WorkRequest send{.wr_id = 2, .opcode = Opcode::kSend, .root_rank = 1, .length = 64};
  send.send.key = site.Key(0, 0, out);
  site.Post(0, 1, receive);
  site.Post(0, 0, send);
  site.RunFor(milliseconds(1));
  EXPECT_EQ(site.CompletionOf(0, 1, 1).status, WorkStatus::kLengthMismatch);
  EXPECT_TRUE(site.engine(0).Deregister(0, send.send.key).ok());
  site.Post(0, 1, receive);
  site.engine(0).RankGone(site.now(), 1);
  EXPECT_EQ(site.engine(0).Deregister(1, receive.receive.key).code(), StatusCode::kNotFound);
  const uint32_t fresh = site.Key(0, 1, in);
  EXPECT_TRUE(site.engine(0).Deregister(1, fresh).ok());
}

TEST(OffloadC2, AnOrdinaryDatagramWithoutAReceiverIsDroppedAndCounted) {
  VirtualSite site({.nodes = 1, .ranks = 2});
  std::vector<std::byte> out(64);
  WorkRequest send{.wr_id = 1, .opcode = Opcode::kSend, .root_rank = 1, .length = 64};
  send.send.key = site.Key(0, 0, out);
  site.Post(0, 0, send);
  site.RunFor(milliseconds(1));
  EXPECT_EQ(site.engine(0).stats().ordinary_dropped, 1u);
}

TEST(OffloadC2, AnOrdinaryDatagramNamesItsSender) {
  VirtualSite site({.nodes = 2, .ranks = 2});
  std::vector<std::byte> out(64), in(64);
  WorkRequest receive{.wr_id = 1, .opcode = Opcode::kReceive, .length = 64};
  receive.receive.key = site.Key(1, 1, in);
  WorkRequest send{.wr_id = 2, .opcode = Opcode::kSend, .root_node = 1, .root_rank = 1, .length = 64};
  send.send.key = site.Key(0, 1, out);
  site.Post(1, 1, receive);
  Header nameless;
  nameless.kind = PacketKind::kOrdinary;
  nameless.opcode = Opcode::kSend;
  nameless.root = 1;
  std::vector<uint8_t> packet(kHeaderBytes);
  ASSERT_EQ(Encapsulate(nameless, {}, packet), packet.size());
  site.engine(1).HandlePacket(site.now(), packet);
  EXPECT_EQ(site.engine(1).stats().packets_refused, 1u);
  site.Post(0, 1, send);
  site.RunFor(milliseconds(1));
  EXPECT_EQ(site.CompletionOf(1, 1, 1).status, WorkStatus::kSuccess);
  EXPECT_EQ(site.CompletionOf(1, 1, 1).source_node, 0);
  EXPECT_EQ(site.CompletionOf(1, 1, 1).source_rank, 1);
}

TEST(OffloadC3, ACompletionComesWhenATaskIsDoneAndOnlyOnce) {
  VirtualSite site({.nodes = 2, .ranks = 2, .faults = {.duplication = 0.3}});
  site.Configure({.nodes = 0b11});
  AllRanks<int32_t> ranks(site, 3000, Small);
  ranks.PostAll();
  site.RunFor(milliseconds(100));
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
  EXPECT_EQ(site.CompletionOf(1, 1, 1).reason, Reason::kDone);
}

TEST(OffloadC3, AQueryIsAnsweredInMidFlight) {
  VirtualSite site({.nodes = 2, .ranks = 2});
  site.Configure({.nodes = 0b11});
  AllRanks<int32_t> one(site, 256 * 40, Small), other(site, 256 * 40, Small);
  other.request.mid = 1;
  // All but rank 1 of node 1; it has posted half of message 1.
  for (auto* ranks : {&one, &other}) {
    ranks->Post(0, 0);
    ranks->Post(0, 1);
    ranks->Post(1, 0);
  }
  WorkRequest half = other.RequestOf(1, 1, 2);
  half.seg_count = 20;
  site.Post(1, 1, half);
  site.RunFor(milliseconds(20));
  const auto query = [&](uint32_t mid, uint64_t wr_id) {
    site.Post(1, 0, {.wr_id = wr_id, .opcode = Opcode::kQuery, .mid = mid});
    site.RunFor(microseconds(1));
    return site.CompletionOf(1, 0, wr_id);
  };
  const Completion none = query(0, 100), some = query(1, 101);
  EXPECT_EQ(none.reason, Reason::kQuery);
  EXPECT_EQ(none.segs_done, 0u);
  EXPECT_EQ(none.segs_total, 40u);
  EXPECT_EQ(none.missing_ranks, 0b10u);
  EXPECT_EQ(some.segs_done, 20u);
  EXPECT_EQ(some.bytes, 20u * 1024);
  EXPECT_EQ(query(9, 102).status, WorkStatus::kFlushed);  // nothing is known of it
  one.Post(1, 1);
  site.RunFor(milliseconds(20));
  const Completion ended = query(0, 103);
  EXPECT_EQ(ended.status, WorkStatus::kSuccess);
  EXPECT_TRUE(one.AllEnded(WorkStatus::kSuccess));
}

TEST(OffloadC3, AnExceptionIsTheThirdOccasionAndTheCallerPostsAgain) {
  VirtualSite site({.nodes = 2, .ranks = 1});
  site.Configure({.nodes = 0b11, .deadline = milliseconds(50)});
  AllRanks<int32_t> ranks(site, 3000, Small);
  ranks.Post(0, 0);
  site.RunFor(milliseconds(100));
  const Completion exception = site.CompletionOf(0, 0, 1);
  EXPECT_EQ(exception.reason, Reason::kException);
  EXPECT_EQ(exception.status, WorkStatus::kTimeout);
  EXPECT_EQ(exception.missing_nodes, 0b10u);
  ranks.request.generation = 1;
  ranks.Post(0, 0, 2);
  ranks.Post(1, 0, 2);
  site.RunFor(milliseconds(40));
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess, 2));
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
}

TEST(OffloadC4, ARequestTakesFromItsJobWhatItDoesNotName) {
  VirtualSite site({.nodes = 3, .ranks = 2});
  site.Configure({.nodes = 0b101, .ranks = 0b01}, 5);
  AllRanks<int32_t> ranks(site, 400, Small);
  ranks.request.jid = 5;
  ranks.request.nodes = 0;
  ranks.Post(0, 0);
  ranks.Post(2, 0);
  site.RunFor(milliseconds(20));
  EXPECT_EQ(site.CompletionOf(0, 0, 1).status, WorkStatus::kSuccess);
  EXPECT_EQ(ranks.at(0, 0).receive[7], 2000 + 2 * 7);
  // ... and its own masks count for more.
  ranks.request.mid = 1;
  ranks.request.nodes = 0b011;
  ranks.request.ranks = 0b11;
  for (const uint8_t node : std::initializer_list<uint8_t>{0, 1}) {
    for (const uint8_t rank : std::initializer_list<uint8_t>{0, 1}) ranks.Post(node, rank, 2);
  }
  site.Post(1, 0, {.wr_id = 9, .opcode = Opcode::kQuery, .jid = 5, .mid = 1});
  site.RunFor(milliseconds(20));
  EXPECT_EQ(site.CompletionOf(1, 1, 2).status, WorkStatus::kSuccess);
  EXPECT_EQ(ranks.at(1, 1).receive[7], 2000 + 200 + 4 * 7);
}

TEST(OffloadC4, AMessageIsPostedPieceByPieceAndPipelined) {
  VirtualSite site({.nodes = 2, .ranks = 2});
  site.Configure({.nodes = 0b11});
  AllRanks<int32_t> ranks(site, 256 * 10, Small);
  for (uint32_t piece = 0; piece < 5; ++piece) {
    for (const uint8_t node : std::initializer_list<uint8_t>{0, 1}) {
      for (const uint8_t rank : std::initializer_list<uint8_t>{0, 1}) {
        WorkRequest request = ranks.RequestOf(node, rank, 10 + piece);
        request.first_seg = 2 * (4 - piece);  // the end of the message first
        request.seg_count = 2;
        site.Post(node, rank, request);
      }
    }
    site.RunFor(milliseconds(1));
    EXPECT_EQ(site.CompletionOf(1, 1, 10 + piece).segs_done, 2 * (piece + 1));
  }
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
}

TEST(OffloadC5, WhatIsAllLocalIsDeliveredWithoutAPacket) {
  VirtualSite site({.nodes = 2, .ranks = 3});
  AllRanks<int32_t> ranks(site, 900, Small);
  ranks.request.nodes = 0b01;
  for (uint8_t rank = 0; rank < 3; ++rank) ranks.Post(0, rank);
  site.RunFor(milliseconds(1));
  EXPECT_EQ(site.CompletionOf(0, 2, 1).status, WorkStatus::kSuccess);
  EXPECT_EQ(ranks.at(0, 2).receive[5], 300 + 3 * 5);
  EXPECT_EQ(site.engine(0).stats().packets_sent, 0u);
}

// External data waits for the ranks, and ranks for external data; the final result goes to all of them.
TEST(OffloadC5, WhateverComesFirstWaitsForTheOther) {
  for (const uint8_t late : {uint8_t{0}, uint8_t{1}}) {
    const auto other = static_cast<uint8_t>(1 - late);
    VirtualSite site({.nodes = 2, .ranks = 2});
    site.Configure({.nodes = 0b11});
    AllRanks<int32_t> ranks(site, 256 * 6, Small);
    ranks.Post(other, 0);
    ranks.Post(other, 1);
    ranks.Post(late, 0);
    site.RunFor(milliseconds(5));
    EXPECT_EQ(site.CountOf(other, 0, 1), 0u);
    ranks.Post(late, 1);
    site.RunFor(milliseconds(20));
    EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
    EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
  }
}

// First data loads the unit, later data uses the unit's own operation, every contributor's bit counts once.
TEST(OffloadC6, LaterDataIsAddedWithTheOperationOfTheSeg) {
  VirtualSite site({.nodes = 4, .ranks = 1, .aggregator = true});
  site.Configure({.nodes = 0b11111, .route = Route::kTree, .root_node = 4});
  AllRanks<int32_t> ranks(site, 256, Small);
  ranks.request.op = ReduceOp::kMax;
  site.RunFor(milliseconds(1));
  for (const uint8_t node : std::initializer_list<uint8_t>{2, 0, 3}) {
    ranks.Post(node, 0);
    site.RunFor(milliseconds(1));
    EXPECT_EQ(site.engine(4).stats().segs_in_use, 1u);  // all of them in one unit
  }
  ranks.Post(1, 0);
  site.RunFor(milliseconds(20));
  EXPECT_EQ(ranks.at(1, 0).receive, ranks.at(3, 0).send);
  EXPECT_EQ(site.SegsInUse(), 0u);
}

TEST(OffloadC6, ASegIsReleasedAtOnceAfterEncapsulation) {
  VirtualSite site({.nodes = 3, .ranks = 1});
  site.Configure({.nodes = 0b111});
  AllRanks<int32_t> ranks(site, 256, Small);  // one seg: 0 -> 1 -> 2
  ranks.Post(0, 0);
  site.RunFor(milliseconds(1));
  EXPECT_EQ(site.engine(1).stats().segs_in_use, 1u);
  ranks.Post(1, 0);
  site.RunFor(Duration(1));  // node 2 has not even got it
  EXPECT_EQ(site.engine(1).stats().segs_in_use, 0u);
  EXPECT_EQ(site.CountOf(1, 0, 1), 0u);
  ranks.Post(2, 0);
  site.RunFor(milliseconds(20));
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
}

TEST(OffloadC7, AReductionIsAtLeastAsWideAsASeg) {
  VirtualSite site({.nodes = 2, .ranks = 2, .engine = {.seg_bytes = 4096}});
  site.Configure({.nodes = 0b11});
  AllRanks<int32_t> ranks(site, 1024 * 10, Small);
  ranks.PostAll();
  site.RunFor(milliseconds(20));
  const OffloadStats stats = site.engine(0).stats();
  // 5 segs begin here (2 ranks each), 5 end here (2 ranks and the other node's sum).
  EXPECT_EQ(stats.bursts, 10u);
  EXPECT_EQ(stats.bytes_reduced, 4096u * (5 * 2 + 5 * 3));
}

TEST(OffloadC8, PacketsCarryTheirIdentityAndTheCompletionTheStatus) {
  VirtualSite site({.nodes = 2, .ranks = 2});
  site.Configure({.nodes = 0b11}, 6);
  AllRanks<int32_t> ranks(site, 600, Small);
  ranks.request.jid = 6;
  ranks.request.mid = 41;
  ranks.request.generation = 3;
  ranks.request.op = ReduceOp::kMin;
  std::map<uint32_t, Header> partials;
  site.filter = [&](uint8_t, uint8_t, std::vector<uint8_t>& datagram) {
    const Header h = Parse(datagram)->header;
    if (h.kind == PacketKind::kPartial) partials[h.sid] = h;
    return true;
  };
  ranks.PostAll();
  site.RunFor(milliseconds(20));
  ASSERT_EQ(partials.size(), 3u);
  const Header& h = partials[1];  // mid + sid is even: from node 0
  EXPECT_EQ(h.op, ReduceOp::kMin);
  EXPECT_EQ(h.jid, 6);
  EXPECT_EQ(h.mid, 41u);
  EXPECT_EQ(h.sid, 1u);
  EXPECT_EQ(h.generation, 3u);
  EXPECT_EQ(h.source, 0);
  EXPECT_EQ(h.nodes, 0b11u);
  EXPECT_EQ(h.contributors, 0b01u);
  EXPECT_EQ(h.ranks, 0b11u);
  EXPECT_EQ(h.participants, 2u);
  const Completion done = site.CompletionOf(0, 1, 1);
  EXPECT_EQ(done.status, WorkStatus::kSuccess);
  EXPECT_EQ(done.jid, 6);
  EXPECT_EQ(done.mid, 41u);
}

TEST(OffloadC9, RingAndTreeDifferInTheRouteAlone) {
  for (const bool aggregator : {false, true}) {
    for (const Route route : {Route::kRing, Route::kTree}) {
      if (aggregator && route == Route::kRing) continue;
      VirtualSite site(
          {.nodes = 4, .ranks = 2, .aggregator = aggregator, .faults = {.loss = 0.05}, .seed = 9});
      const uint8_t root = aggregator ? 4 : 2;
      site.Configure({.nodes = site.all_nodes(), .route = route, .root_node = root});
      site.RunFor(seconds(1));
      AllRanks<float> ranks(site, 3000, Fraction);
      ranks.request.flags = WorkRequest::kDeterministic;
      if (route == Route::kTree) ranks.tree_root = root;
      ranks.PostAll();
      site.RunFor(seconds(3));
      EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
      EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
      EXPECT_EQ(site.SegsInUse(), 0u);
    }
  }
}

TEST(OffloadC9, TheOtherCollectivesOfBothRoutes) {
  for (const Route route : {Route::kRing, Route::kTree}) {
    VirtualSite site({.nodes = 3, .ranks = 2, .faults = {.loss = 0.05, .duplication = 0.05}, .seed = 5});
    site.Configure({.nodes = 0b111, .route = route, .root_node = 1});
    AllRanks<int32_t> reduce(site, 2000, Small), broadcast(site, 2000, Small), scatter(site, 2000, Small);
    reduce.request.opcode = Opcode::kReduce;
    broadcast.request.opcode = Opcode::kBroadcast;
    scatter.request.opcode = Opcode::kReduceScatter;
    uint32_t mid = 0;
    for (auto* ranks : {&reduce, &broadcast, &scatter}) {
      ranks->request.mid = mid++;
      ranks->request.root_node = 1;
      ranks->request.root_rank = 1;
      if (route == Route::kTree && ranks == &scatter) continue;  // only the ring leaves parts everywhere
      ranks->PostAll(mid);
      site.RunFor(seconds(2));
      EXPECT_TRUE(ranks->AllEnded(WorkStatus::kSuccess, mid));
    }
    EXPECT_EQ(reduce.at(1, 1).receive, reduce.Expected());
    EXPECT_EQ(reduce.at(1, 0).receive, std::vector<int32_t>(2000));
    EXPECT_TRUE(broadcast.AllReceived(broadcast.at(1, 1).send));
    if (route == Route::kTree) continue;
    const std::vector<int32_t> sum = scatter.Expected();
    for (uint32_t i = 0; i < 6; ++i) {
      const Share share = ShareOf(8000, 1024, i, 6);
      const auto& received = scatter.at(static_cast<uint8_t>(i / 2), i % 2).receive;
      EXPECT_EQ(std::memcmp(received.data(), sum.data() + share.offset / 4, share.length), 0) << i;
    }
    EXPECT_EQ(site.SegsInUse(), 0u);
  }
}

// The root and node 1 are far ahead; node 1 takes no more results than it has timers for.
TEST(OffloadC9, ABroadcastGoesOnWhenALateNodeComes) {
  VirtualSite site({.nodes = 3, .ranks = 1, .engine = {.window_segs = 1}});
  site.Configure({.nodes = 0b111});
  AllRanks<int32_t> ranks(site, 256 * 400, Small);
  ranks.request.opcode = Opcode::kBroadcast;
  ranks.Post(0, 0);
  ranks.Post(1, 0);
  site.RunFor(milliseconds(100));
  ranks.Post(2, 0);
  site.RunFor(seconds(9));
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
  EXPECT_TRUE(ranks.AllReceived(ranks.at(0, 0).send));
}

// Node 1 forwards a result before the turn of its seg. The round trip begins there, and not at the turn.
TEST(OffloadC9, TheRoundTripOfAResultBeforeItsTurnIsWhole) {
  VirtualSite site(
      {.nodes = 3, .ranks = 1, .engine = {.window_segs = 1}, .faults = {.delay = milliseconds(1)}});
  site.Configure({.nodes = 0b111});
  AllRanks<int32_t> ranks(site, 256 * 20, Small);
  ranks.request.opcode = Opcode::kBroadcast;  // 0 -> 1 -> 2
  std::vector<uint8_t> result, ack;
  site.filter = [&](uint8_t from, uint8_t to, std::vector<uint8_t>& datagram) {
    const Header h = Parse(datagram)->header;
    const bool first = h.kind == PacketKind::kAckResult && from == 2 && h.sid == 0;
    const bool second = h.kind == PacketKind::kResult && to == 1 && h.sid == 1;
    if (first) ack = datagram;
    if (second) result = datagram;
    return !first && !second;
  };
  ranks.PostAll();
  site.RunFor(milliseconds(7));
  site.Inject(1, result);  // beyond the window: node 2 has not acknowledged the first seg
  site.RunFor(microseconds(1900));
  site.Inject(1, ack);  // the first seg is done, its second transmission measures nothing
  site.filter = nullptr;
  site.RunFor(milliseconds(100));
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
  EXPECT_EQ(site.engine(1).stats().retransmissions, 1u);
}

// Completion per message would hold 600 segs; fine-grained ones need as many as are under way.
TEST(OffloadC10, AMessageNeedsTheSegsUnderWayAndNotItsSize) {
  constexpr uint32_t kSegs = 4000;
  const auto run = [](uint32_t pool, uint32_t window, uint32_t segs) {
    VirtualSite site({.nodes = 2,
                      .ranks = 1,
                      .aggregator = true,
                      .engine = {.pool_segs = pool, .window_segs = window},
                      .faults = {.delay = microseconds(20)}});
    site.Configure({.nodes = 0b111, .route = Route::kTree, .root_node = 2});
    site.RunFor(milliseconds(1));
    AllRanks<int32_t> ranks(site, 256 * segs, Small);
    ranks.PostAll();
    site.RunFor(seconds(2));
    EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
    EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
    EXPECT_LE(site.engine(2).stats().segs_most, std::min(pool, 2 * window));
    return static_cast<double>(site.CompletionOf(0, 0, 1).elapsed.count()) / segs;
  };
  const uint32_t window = EngineOptions().window_segs;
  const double unlimited = run(2 * kSegs, window, kSegs), limited = run(512, window, kSegs);
  EXPECT_GE(unlimited, 0.95 * limited);
  EXPECT_GT(run(512, 1, 100), 50 * limited);  // segs that wait for each other do not pipeline
}

// Sums of messages that the ranks here have not posted leave units for one that they have.
TEST(OffloadC10, WhatWaitsForRanksLeavesUnitsForTheOthers) {
  VirtualSite site({.nodes = 3, .ranks = 1, .engine = {.pool_segs = 8}});
  site.Configure({.nodes = 0b111, .route = Route::kTree, .root_node = 0});
  AllRanks<int32_t> ranks(site, 256, Small);
  for (uint32_t mid = 1; mid <= 20; ++mid) {
    ranks.request.mid = mid;
    ranks.Post(1, 0, 100 + mid);
  }
  site.RunFor(milliseconds(1));
  EXPECT_EQ(site.engine(0).stats().segs_in_use, 6u);
  ranks.request.mid = 0;
  ranks.PostAll();
  site.RunFor(seconds(1));
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
}

// What finds no unit is not acknowledged, though it is the last that its seg waits for.
TEST(OffloadC10, AnAggregatorOfOneNodeNeedsAPoolAndNotTheMessage) {
  VirtualSite site({.nodes = 1,
                    .ranks = 1,
                    .aggregator = true,
                    .engine = {.pool_segs = 8},
                    .faults = {.delay = microseconds(20)}});
  site.Configure({.nodes = 0b11, .route = Route::kTree, .root_node = 1});
  site.RunFor(milliseconds(1));
  AllRanks<int32_t> ranks(site, 256 * 100, Small);
  ranks.PostAll();
  site.RunFor(seconds(9));
  EXPECT_GT(site.engine(1).stats().pool_exhausted, 0u);
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
}

// --- Defects of the source.

TEST(OffloadDefects, ADuplicateIsTestedBeforeItIsAdded) {
  VirtualSite site({.nodes = 3, .ranks = 1, .aggregator = true, .faults = {.duplication = 0.9}});
  site.Configure({.nodes = 0b1111, .route = Route::kTree, .root_node = 3});
  AllRanks<int32_t> ranks(site, 3000, Small);
  site.RunFor(milliseconds(1));
  for (uint8_t node = 0; node < 3; ++node) {
    ranks.Post(node, 0);
    site.RunFor(milliseconds(1));
  }
  site.RunFor(milliseconds(50));
  EXPECT_GT(site.engine(3).stats().duplicates, 10u);
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
}

TEST(OffloadDefects, ARankThatPostsTwiceIsAddedOnce) {
  VirtualSite site({.ranks = 2});
  AllRanks<int32_t> ranks(site, 600, Small);
  ranks.Post(0, 0, 1);
  ranks.Post(0, 0, 2);
  ranks.Post(0, 1, 1);
  site.RunFor(milliseconds(1));
  EXPECT_EQ(site.CompletionOf(0, 0, 2).status, WorkStatus::kSuccess);
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess, 1));
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
  EXPECT_EQ(site.engine(0).stats().duplicates, 3u);
}

TEST(OffloadDefects, ASumOfWhichAPartIsInIsRefused) {
  VirtualSite site({.nodes = 3, .ranks = 1});
  site.Configure({.nodes = 0b111, .policy = StragglerPolicy::kOff});
  AllRanks<int32_t> ranks(site, 256, Small);  // 0 -> 1 -> 2
  ranks.Post(0, 0);
  site.RunFor(milliseconds(1));  // node 1 holds {0}
  bool forged = false;
  site.filter = [&](uint8_t, uint8_t to, std::vector<uint8_t>& datagram) {
    auto packet = Parse(datagram);
    if (to != 2 || packet->header.kind != PacketKind::kPartial || forged) return true;
    // Node 2 gets {1} beside {0, 1}.
    forged = true;
    Header h = packet->header;
    h.contributors = 0b010;
    std::vector<uint8_t> other(datagram.size());
    Encapsulate(h, packet->payload, other);
    site.Inject(2, other);
    return true;
  };
  ranks.Post(1, 0);
  site.RunFor(milliseconds(1));
  ranks.Post(2, 0);
  site.RunFor(milliseconds(20));
  EXPECT_GT(site.engine(2).stats().overlaps_refused, 0u);
  EXPECT_EQ(site.CountOf(2, 0, 1), 0u);  // no sum rather than a wrong one
}

// One packet that is not what it says, just before a real one: it is refused, and the sum is right.
TEST(OffloadDefects, APartThatHasNoPlaceIsRefused) {
  const std::function<void(Header&)> changes[] = {
      [](Header& h) { h.contributors = 0b100; },           // not on the way to node 1
      [](Header& h) { h.source = 2, h.nodes &= 0b011; },   // from a node that takes no part
      [](Header& h) { h.contributors = h.nodes &= 0b1; },  // of a message without this node
  };
  for (const auto& change : changes) {
    VirtualSite site({.nodes = 3, .ranks = 1});
    AllRanks<int32_t> ranks(site, 256, Small);  // 0 -> 1 -> 2
    site.Configure({.nodes = 0b111, .policy = StragglerPolicy::kOff});
    bool forged = false;
    site.filter = [&](uint8_t, uint8_t to, std::vector<uint8_t>& datagram) {
      auto packet = Parse(datagram);
      if (to != 1 || packet->header.kind != PacketKind::kPartial || forged) return true;
      forged = true;
      change(packet->header);
      std::vector<uint8_t> other(datagram.size()), wrong(packet->payload.size(), 7);
      Encapsulate(packet->header, wrong, other);
      site.Inject(1, other);
      return true;
    };
    ranks.PostAll();
    site.RunFor(milliseconds(20));
    EXPECT_TRUE(forged && ranks.AllEnded(WorkStatus::kSuccess));
    EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
  }
}

// The sum that node 1 has not got comes again, though node 2 says that it has it.
TEST(OffloadDefects, AnAcknowledgementIsOfTheNodeThatWasSentTo) {
  VirtualSite site({.nodes = 3, .ranks = 1});
  site.Configure({.nodes = 0b111});
  AllRanks<int32_t> ranks(site, 256, Small);  // 0 -> 1 -> 2
  bool lost = false;
  site.filter = [&](uint8_t from, uint8_t, std::vector<uint8_t>& datagram) {
    Header h = Parse(datagram)->header;
    if (from != 0 || h.kind != PacketKind::kPartial || lost) return true;
    lost = true;
    h.kind = PacketKind::kAckPartial;
    h.source = 2;
    std::vector<uint8_t> ack(kHeaderBytes);
    Encapsulate(h, {}, ack);
    site.Inject(0, ack);
    return false;
  };
  ranks.PostAll();
  site.RunFor(milliseconds(100));
  EXPECT_TRUE(lost && ranks.AllEnded(WorkStatus::kSuccess));
}

// Two sums wait in the queue for node 1 when something happens: neither leaves.
TEST(OffloadDefects, WhatIsQueuedLeavesOnlyWhileItIsWanted) {
  using Ranks = AllRanks<int32_t>;
  const auto from_node_1 = [](VirtualSite& site, PacketKind kind, uint64_t contributors) {
    Header h;
    h.kind = kind;
    h.source = 1;
    h.contributors = contributors;
    h.nodes = 0b111;
    h.length = 4096;
    h.seg_bytes = 1024;
    h.type = DataType::kInt32;
    std::vector<uint8_t> packet(kHeaderBytes);
    for (const uint32_t sid : {0u, 3u}) {
      h.sid = sid;
      Encapsulate(h, {}, packet);
      site.Inject(0, packet);
    }
  };
  const auto cancel = [](VirtualSite& site) { site.Post(0, 0, {.wr_id = 9, .opcode = Opcode::kCancel}); };
  const std::function<void(VirtualSite&, Ranks&)> events[] = {
      [&](VirtualSite& site, Ranks&) { cancel(site); },
      [&](VirtualSite& site, Ranks& ranks) {  // and a shorter message takes its slot
        cancel(site);
        ranks.request.mid = 3;
        ranks.request.length = 1024;
        ranks.Post(0, 0, 2);
      },
      [&](VirtualSite& site, Ranks&) {  // acknowledged, while it waits to leave again
        std::vector<uint8_t> packet(kHeaderBytes + 1024);
        while (site.engine(0).PollTransmit(site.now(), packet)) {
        }
        site.engine(0).HandleTimeout(site.now() + milliseconds(10));
        from_node_1(site, PacketKind::kAckPartial, 1);
      },
      [&](VirtualSite& site, Ranks&) { from_node_1(site, PacketKind::kGoneOn, 0); },
  };
  for (const auto& event : events) {
    VirtualSite site({.nodes = 3, .ranks = 1});
    site.Configure({.nodes = 0b111});
    Ranks ranks(site, 256 * 4, Small);
    ranks.Post(0, 0);
    site.engine(0).Advance(site.now(), 1 << 20);
    event(site, ranks);
    uint32_t sent = 0;
    site.filter = [&](uint8_t, uint8_t to, std::vector<uint8_t>& datagram) {
      const Header h = Parse(datagram)->header;
      sent += h.kind == PacketKind::kPartial && h.mid == 0 && to == 1;
      return true;
    };
    site.RunFor(milliseconds(1));
    EXPECT_EQ(sent, 0u);
  }
}

// The time after which a sum comes again is learned from its acknowledgements: 0.5 ms and not the first 5.
TEST(OffloadDefects, ALostSumComesAgainAfterALearnedTime) {
  VirtualSite site({.nodes = 2, .ranks = 1, .engine = {.window_segs = 1}});
  site.Configure({.nodes = 0b11, .route = Route::kTree, .root_node = 0});
  AllRanks<int32_t> ranks(site, 256 * 20, Small);
  ranks.request.opcode = Opcode::kReduce;  // node 1 gets no results
  bool lost = false;
  site.filter = [&](uint8_t, uint8_t, std::vector<uint8_t>& datagram) {
    const Header h = Parse(datagram)->header;
    return h.kind != PacketKind::kPartial || h.sid != 10 || std::exchange(lost, true);
  };
  ranks.PostAll();
  site.RunFor(milliseconds(100));
  EXPECT_TRUE(lost && ranks.AllEnded(WorkStatus::kSuccess));
  EXPECT_LT(site.CompletionOf(1, 0, 1).elapsed, milliseconds(2));
}

TEST(OffloadDefects, LaterDataMustAgreeInNodesAndRoot) {
  const std::function<void(WorkRequest&)> changes[] = {[](WorkRequest& r) { r.nodes = 0b011; },
                                                       [](WorkRequest& r) { r.root_node = 1; }};
  for (const auto& change : changes) {
    VirtualSite site({.nodes = 3, .ranks = 1});
    site.Configure({.nodes = 0b111});
    AllRanks<int32_t> ranks(site, 256, Small);
    ranks.request.opcode = Opcode::kBroadcast;
    ranks.Post(0, 0);
    WorkRequest other = ranks.RequestOf(1, 0);
    change(other);
    site.Post(1, 0, other);
    site.RunFor(milliseconds(50));
    EXPECT_EQ(site.CompletionOf(0, 0, 1).status, WorkStatus::kOpMismatch);
    EXPECT_EQ(site.CompletionOf(1, 0, 1).status, WorkStatus::kOpMismatch);
  }
}

TEST(OffloadDefects, LaterDataMustAgreeInOperationTypeAndLength) {
  struct Case {
    WorkStatus status;
    std::function<void(WorkRequest&)> change;
  };
  const Case cases[] = {
      {WorkStatus::kOpMismatch, [](WorkRequest& r) { r.op = ReduceOp::kMax; }},
      {WorkStatus::kOpMismatch, [](WorkRequest& r) { r.type = DataType::kFloat32; }},
      {WorkStatus::kOpMismatch, [](WorkRequest& r) { r.opcode = Opcode::kReduceScatter; }},
      {WorkStatus::kLengthMismatch, [](WorkRequest& r) { r.length -= 4; }},
  };
  for (const Case& c : cases) {
    VirtualSite site({.nodes = 2, .ranks = 1});
    site.Configure({.nodes = 0b11});
    AllRanks<int32_t> ranks(site, 256, Small);
    ranks.Post(0, 0);
    WorkRequest other = ranks.RequestOf(1, 0);
    c.change(other);
    site.Post(1, 0, other);
    site.RunFor(milliseconds(50));
    EXPECT_TRUE(ranks.AllEnded(c.status));
    EXPECT_EQ(site.SegsInUse(), 0u);
  }
}

TEST(OffloadDefects, ASegThatWaitsInVainIsGivenBackAtItsTimeOut) {
  VirtualSite site({.nodes = 2, .ranks = 1});
  site.Configure({.nodes = 0b11, .deadline = milliseconds(100)});
  AllRanks<int32_t> ranks(site, 256 * 50, Small);
  ranks.Post(0, 0);
  site.RunFor(milliseconds(5));
  EXPECT_EQ(site.engine(1).stats().segs_in_use, 25u);
  site.RunFor(seconds(1));
  EXPECT_EQ(site.CompletionOf(0, 0, 1).status, WorkStatus::kTimeout);
  EXPECT_EQ(site.SegsInUse(), 0u);
}

TEST(OffloadDefects, AMessageThatNobodyHereJoinsIsForgotten) {
  VirtualSite site({.nodes = 2, .ranks = 1});
  site.Configure({.nodes = 0b11, .deadline = milliseconds(100)});
  AllRanks<int32_t> ranks(site, 256 * 50, Small);
  ranks.Post(0, 0);
  site.RunFor(milliseconds(5));
  site.Kill(0);
  site.RunFor(seconds(1));
  EXPECT_EQ(site.engine(1).stats().orphans, 1u);
  EXPECT_EQ(site.engine(1).stats().segs_in_use, 0u);
}

// Packets of a message that no rank of any node has posted: a damaged number with a checksum that is right.
TEST(OffloadDefects, AMessageOfNoRankEndsAtAllNodes) {
  for (const auto policy : {StragglerPolicy::kOff, StragglerPolicy::kSeedSkip, StragglerPolicy::kCascade,
                            StragglerPolicy::kSelfSkip, StragglerPolicy::kLeafDemote}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE(testing::Message() << "policy " << static_cast<int>(policy) << " seed " << seed);
      VirtualSite site(
          {.nodes = 3, .ranks = 1, .faults = {.reordering = 0.2, .delay = milliseconds(20)}, .seed = seed});
      site.Configure(
          {.nodes = 0b111, .policy = policy, .skip_after = microseconds(30), .deadline = milliseconds(50)});
      AllRanks<int32_t> ranks(site, 256 * 6, Small);
      Random random(seed);
      site.filter = [&](uint8_t, uint8_t, std::vector<uint8_t>& datagram) {
        const auto packet = Parse(datagram);
        if (packet && random.Chance(0.2)) {
          Header changed = packet->header;
          changed.mid += 6;
          std::vector<uint8_t> other(datagram.size());
          Encapsulate(changed, packet->payload, other);
          datagram = other;
        }
        return true;
      };
      ranks.PostAll();
      site.RunFor(milliseconds(50));
      site.filter = nullptr;
      site.RunFor(seconds(10));
      EXPECT_EQ(site.SegsInUse(), 0u);
      for (uint8_t node = 0; node < 3; ++node) EXPECT_TRUE(site.engine(node).NextTimeout().IsInfinite());
    }
  }
}

// The aggregator has forgotten the message meanwhile, and has no rank that would begin it.
TEST(OffloadDefects, AnAggregatorThatWasOutOfReachTakesTheMessageAgain) {
  VirtualSite site({.nodes = 2, .ranks = 1, .aggregator = true});
  site.Configure({.nodes = 0b111, .route = Route::kTree, .root_node = 2, .deadline = milliseconds(50)});
  site.RunFor(seconds(1));
  AllRanks<int32_t> ranks(site, 256 * 4, Small);
  ranks.request.deadline = seconds(10);
  const Instant begun = site.now();
  site.filter = [&](uint8_t from, uint8_t, std::vector<uint8_t>&) {
    const Duration after = site.now() - begun;
    return after > milliseconds(300) || (from != 2 && after < milliseconds(1));
  };
  ranks.PostAll();
  site.RunFor(seconds(5));
  EXPECT_EQ(site.engine(2).stats().orphans, 1u);
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess));
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
}

TEST(OffloadDefects, StaleGenerationsAreRejected) {
  VirtualSite site({.nodes = 2, .ranks = 1});
  site.Configure({.nodes = 0b11, .deadline = milliseconds(50)});
  AllRanks<int32_t> ranks(site, 256 * 4, Small);
  std::vector<std::vector<uint8_t>> old;
  site.filter = [&](uint8_t, uint8_t to, std::vector<uint8_t>& datagram) {
    if (to == 1) old.push_back(datagram);
    return false;  // the first attempt reaches no node
  };
  ranks.Post(0, 0);
  site.RunFor(milliseconds(100));
  ASSERT_EQ(site.CompletionOf(0, 0, 1).status, WorkStatus::kTimeout);
  site.filter = nullptr;
  // The second attempt sends other values; what is left of the first comes in between.
  for (const uint8_t node : std::initializer_list<uint8_t>{0, 1}) {
    for (int32_t& v : ranks.at(node, 0).send) v = -v;
  }
  ranks.request.generation = 1;
  ranks.Post(1, 0, 2);
  for (const auto& datagram : old) site.Inject(1, datagram);
  ranks.Post(0, 0, 2);
  site.RunFor(milliseconds(40));
  EXPECT_GT(site.engine(1).stats().stale_generations, 0u);
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess, 2));
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
}

TEST(OffloadDefects, AReleasedUnitIsNotFoundByItsOldReference) {
  SegPool pool(1, 64);
  const SegRef old = *pool.Take(0);
  pool.Release(old);
  const SegRef fresh = *pool.Take(1);
  EXPECT_EQ(pool.Find(old), nullptr);
  pool.Release(old);  // does nothing
  EXPECT_NE(pool.Find(fresh), nullptr);
  EXPECT_EQ(pool.in_use(), 1u);
}

// A device without ranks that did not hear of an attempt's end goes on to the next one.
TEST(OffloadDefects, AnAggregatorTakesANewerAttemptThoughTheAbortWasLost) {
  VirtualSite site({.nodes = 2, .ranks = 1, .aggregator = true});
  site.Configure({.nodes = 0b111, .route = Route::kTree, .root_node = 2});
  site.RunFor(std::chrono::milliseconds(1));
  site.filter = [](uint8_t, uint8_t to, std::vector<uint8_t>& datagram) {
    return to != 2 || Parse(datagram)->header.kind != PacketKind::kAbort;
  };
  AllRanks<int32_t> ranks(site, 2000, Small);
  ranks.request.nodes = 0b111;
  ranks.Post(0, 0, 1);
  site.RunFor(std::chrono::milliseconds(1));
  WorkRequest cancel{.wr_id = 2, .opcode = Opcode::kCancel};
  site.Post(0, 0, cancel);
  site.RunFor(std::chrono::milliseconds(1));
  EXPECT_EQ(site.CompletionOf(0, 0, 1).status, WorkStatus::kCancelled);
  ranks.request.generation = 1;
  ranks.PostAll(3);
  site.RunFor(std::chrono::milliseconds(500));
  EXPECT_TRUE(ranks.AllEnded(WorkStatus::kSuccess, 3));
  EXPECT_TRUE(ranks.AllReceived(ranks.Expected()));
}

}  // namespace
}  // namespace longhaul::offload
