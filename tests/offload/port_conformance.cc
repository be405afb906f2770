#include "tests/offload/port_conformance.h"

#include <array>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>

#include "base/random.h"
#include "tests/offload/rank_arrays.h"

namespace longhaul::offload {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

void Configure(PortSite& site, const SiteOptions& options, const JobConfig& config) {
  for (uint8_t node = 0; node < options.nodes; ++node) {
    ASSERT_TRUE(site.device(node, 0).Configure(0, config, 999).ok());
    ASSERT_EQ(NextOf(site.device(node, 0)).status, WorkStatus::kSuccess);
  }
  if (!options.aggregator) return;
  WorkRequest request;
  request.opcode = Opcode::kConfig;
  request.config = &config;
  request.root_node = options.nodes;
  ASSERT_TRUE(site.device(0, 0).Post({&request, 1}).ok());
  ASSERT_EQ(NextOf(site.device(0, 0)).status, WorkStatus::kSuccess);
}

TEST_P(PortConformance, AllReduceOnEveryRoute) {
  struct Case {
    uint8_t nodes;
    Route route;
    bool aggregator;
  };
  for (const Case& c : {Case{1, Route::kRing, false},
                        {3, Route::kRing, false},
                        {3, Route::kTree, false},
                        {3, Route::kTree, true}}) {
    const SiteOptions options{.nodes = c.nodes, .ranks_per_node = 2, .aggregator = c.aggregator};
    const auto site = GetParam().open(options);
    const uint8_t all = static_cast<uint8_t>(c.nodes + c.aggregator);
    const uint8_t root = c.aggregator ? c.nodes : 0;
    Configure(*site, options, {.nodes = (1u << all) - 1, .route = c.route, .root_node = root});
    std::vector<std::unique_ptr<RankArrays>> ranks;
    for (uint8_t node = 0; node < c.nodes; ++node) {
      for (const uint8_t rank : std::initializer_list<uint8_t>{0, 1}) {
        ranks.push_back(std::make_unique<RankArrays>(site->device(node, rank), 10'000, 10 * node + rank));
      }
    }
    for (auto& rank : ranks) ASSERT_TRUE(rank->Post(5).ok());
    for (auto& rank : ranks) {
      const Completion done = NextOf(*rank->device);
      EXPECT_EQ(done.status, WorkStatus::kSuccess);
      EXPECT_EQ(done.wr_id, 5u);
    }
    for (auto& rank : ranks) {
      for (size_t i = 0; i < rank->send.size(); ++i) {
        const int32_t n = c.nodes, sum = static_cast<int32_t>(i) * 2 * n + n + 20 * (n * (n - 1) / 2);
        ASSERT_EQ(rank->receive[i], sum) << i;
      }
    }
  }
}

TEST_P(PortConformance, PostReturnsTheFirstBadRequest) {
  const auto site = GetParam().open({.ranks_per_node = 1, .queue_depth = 4});
  RankArrays rank(site->device(0, 0), 10, 0);
  std::vector<WorkRequest> list = {rank.Request(1, 1), rank.Request(2, 2), rank.Request(3, 3)};
  list[1].opcode = static_cast<Opcode>(77);
  size_t bad = 99;
  EXPECT_EQ(rank.device->Post(list, &bad).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(bad, 1u);
  EXPECT_EQ(NextOf(*rank.device).wr_id, 1u);  // what came before it is done, what came after is not begun
  Completion none;
  EXPECT_EQ(rank.device->Poll({&none, 1}), 0u);
}

TEST_P(PortConformance, WhatNoRequestCanBeIsRefusedAndTheNextIsTaken) {
  const auto site = GetParam().open({.ranks_per_node = 1});
  RankArrays rank(site->device(0, 0), 10, 0);
  JobConfig no_route, no_policy;
  no_route.route = static_cast<Route>(2);
  no_policy.policy = static_cast<StragglerPolicy>(5);
  const WorkRequest config{.opcode = Opcode::kConfig};
  const std::function<void(WorkRequest&)> changes[] = {
      [](WorkRequest& r) { r.opcode = static_cast<Opcode>(9); },
      [](WorkRequest& r) { r.flags = 4; },
      [&](WorkRequest& r) { r = config; },
      [&](WorkRequest& r) { r = config, r.config = &no_route; },
      [&](WorkRequest& r) { r = config, r.config = &no_policy; },
  };
  uint32_t id = 0;
  for (const auto& change : changes) {
    ++id;
    WorkRequest request = rank.Request(id, id);
    change(request);
    EXPECT_EQ(rank.device->Post({&request, 1}).code(), StatusCode::kInvalidArgument) << id;
    EXPECT_TRUE(rank.Post(id, id).ok());
    EXPECT_EQ(NextOf(*rank.device).wr_id, id);
  }
}

TEST_P(PortConformance, ARegionIsGivenBackOnceWhateverThreadsAsk) {
  const auto site = GetParam().open({.ranks_per_node = 1});
  Device& device = site->device(0, 0);
  std::vector<std::byte> memory(4096);
  for (int round = 0; round < 100; ++round) {
    const uint32_t key = device.Register(memory).value();
    Status ends[2];
    std::thread other([&] { ends[1] = device.Deregister(key); });
    ends[0] = device.Deregister(key);
    other.join();
    ASSERT_NE(ends[0].ok(), ends[1].ok()) << ends[0].ToString() << ", " << ends[1].ToString();
    EXPECT_EQ(ends[ends[0].ok() ? 1 : 0].code(), StatusCode::kNotFound);
  }
}

TEST_P(PortConformance, AFullQueueIsSaidAndNothingIsLost) {
  const auto site = GetParam().open({.ranks_per_node = 1, .queue_depth = 4});
  RankArrays rank(site->device(0, 0), 10, 0);
  std::vector<WorkRequest> list;
  for (uint32_t i = 0; i < 6; ++i) list.push_back(rank.Request(i, i));
  size_t bad = 0;
  EXPECT_EQ(rank.device->Post(list, &bad).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(bad, 4u);
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(NextOf(*rank.device).wr_id, i);
  EXPECT_TRUE(rank.Post(4, 4).ok());
  EXPECT_EQ(NextOf(*rank.device).wr_id, 4u);
}

// Of every length and any content: between nodes in both directions, and between ranks of a node.
TEST_P(PortConformance, OrdinaryDatagramsArriveUnchangedBetweenCollectives) {
  if (GetParam().loses_datagrams) GTEST_SKIP() << "that one may be lost";
  const SiteOptions options{.nodes = 2, .ranks_per_node = 2};
  const auto site = GetParam().open(options);
  Configure(*site, options, {.nodes = 0b11});
  std::vector<std::unique_ptr<RankArrays>> ranks, datagrams;
  for (const uint8_t node : std::initializer_list<uint8_t>{0, 1}) {
    for (const uint8_t rank : std::initializer_list<uint8_t>{0, 1}) {
      ranks.push_back(std::make_unique<RankArrays>(site->device(node, rank), 5000, 7));
      datagrams.push_back(std::make_unique<RankArrays>(site->device(node, rank), 256, 0));
    }
  }
  Random random(4);
  constexpr size_t kTo[] = {2, 0, 3, 1};  // of 0/0, 0/1, 1/0, 1/1: other nodes' and, of 0/1, its own node's
  for (uint32_t round = 0; round < 20; ++round) {
    const uint64_t length = round == 0 ? 1024 : 1 + random.Below(1024);
    for (size_t i = 0; i < 4; ++i) {
      for (int32_t& word : datagrams[i]->send) word = static_cast<int32_t>(random.Next());
      datagrams[i]->receive.assign(256, 0);
      WorkRequest receive{.wr_id = 70, .opcode = Opcode::kReceive, .length = 1024};
      receive.receive.key = datagrams[i]->receive_key;
      ASSERT_TRUE(datagrams[i]->device->Post({&receive, 1}).ok());
      ASSERT_TRUE(datagrams[i]->device->Query(0, 0, 60).ok());
      ASSERT_EQ(NextOf(*datagrams[i]->device).wr_id, 60u);  // the device has it
    }
    std::array<bool, 4> before{};
    for (size_t i = 0; i < 4; ++i) {
      before[i] = random.Chance(0.5);
      if (before[i]) {
        ASSERT_TRUE(ranks[i]->Post(1, round).ok());
      }
      WorkRequest send{.wr_id = 80, .opcode = Opcode::kSend, .length = length};
      send.root_node = static_cast<uint8_t>(kTo[i] / 2);
      send.root_rank = static_cast<uint8_t>(kTo[i] % 2);
      send.send.key = datagrams[i]->send_key;
      ASSERT_TRUE(datagrams[i]->device->Post({&send, 1}).ok());
    }
    for (size_t i = 0; i < 4; ++i) {
      if (!before[i]) {
        ASSERT_TRUE(ranks[i]->Post(1, round).ok());
      }
    }
    for (size_t i = 0; i < 4; ++i) {
      std::multiset<uint64_t> ends;
      for (int k = 0; k < 3; ++k) {
        const Completion done = NextOf(*datagrams[i]->device);
        ends.insert(done.wr_id);
        EXPECT_EQ(done.status, WorkStatus::kSuccess) << done.wr_id;
        if (done.wr_id == 70) {
          EXPECT_EQ(done.bytes, length);
          EXPECT_EQ(kTo[done.source_node * 2 + done.source_rank], i) << "who sent it";
        }
      }
      EXPECT_EQ(ends, (std::multiset<uint64_t>{1, 70, 80}));
    }
    for (size_t i = 0; i < 4; ++i) {
      const RankArrays &from = *datagrams[i], &to = *datagrams[kTo[i]];
      EXPECT_EQ(std::memcmp(from.send.data(), to.receive.data(), length), 0) << round << ", from " << i;
      EXPECT_EQ(ranks[i]->receive[10], 4 * 17) << round;
    }
  }
}

// By one site, in one order: what a rank does wrong, what it finds full, and what others do.
TEST_P(PortConformance, EveryStatusIsProvoked) {
  const SiteOptions options{.nodes = 2, .ranks_per_node = 2, .scratch_bytes = 1000};
  const auto site = GetParam().open(options);
  constexpr uint16_t kBoth = 1;  // a job of both nodes; job 0 is of one
  for (const uint8_t node : std::initializer_list<uint8_t>{0, 1}) {
    ASSERT_TRUE(site->device(node, 0).Configure(kBoth, {.nodes = 0b11}, 999).ok());
    ASSERT_EQ(NextOf(site->device(node, 0)).status, WorkStatus::kSuccess);
  }
  RankArrays a(site->device(0, 0), 256, 1), b(site->device(0, 1), 256, 2);
  std::set<WorkStatus> seen;
  uint32_t mid = 0;
  const auto end_of = [&](WorkRequest request) {
    EXPECT_TRUE(a.device->Post({&request, 1}).ok());
    const Completion done = NextOf(*a.device);
    EXPECT_EQ(done.wr_id, request.wr_id);
    seen.insert(done.status);
    return done;
  };
  const auto next = [&] {
    ++mid;
    return a.Request(mid, mid);
  };
  const auto alone = [&] {
    WorkRequest of_one = next();
    of_one.ranks = 0b01;
    return of_one;
  };
  WorkRequest request = alone();
  EXPECT_EQ(end_of(request).status, WorkStatus::kSuccess);
  EXPECT_EQ(end_of(request).status, WorkStatus::kFlushed);  // it is over
  request = alone();
  request.length = 6;  // no whole elements
  EXPECT_EQ(end_of(request).status, WorkStatus::kLengthMismatch);
  request = alone();
  request.send.key += 0x10000;
  EXPECT_EQ(end_of(request).status, WorkStatus::kProtectionError);
  request = alone();
  request.ranks = 0b10;
  EXPECT_EQ(end_of(request).status, WorkStatus::kBadRank);
  request = alone();
  request.nodes = 0b10;
  EXPECT_EQ(end_of(request).status, WorkStatus::kBadNode);
  request = next();
  request.opcode = Opcode::kReduce;  // to the other node: its partial sums have no place here
  request.root_node = 1;
  request.jid = kBoth;
  EXPECT_EQ(end_of(request).status, WorkStatus::kBufferError);
  // What waits for the other rank.
  request = next();
  request.deadline = milliseconds(50);
  const Completion late = end_of(request);
  EXPECT_EQ(late.status, WorkStatus::kTimeout);
  EXPECT_EQ(late.missing_ranks, 0b10u);
  request = next();
  request.deadline = milliseconds(50);
  request.flags = WorkRequest::kAllowPartial;
  const Completion partial = end_of(request);
  EXPECT_EQ(partial.status, WorkStatus::kPartial);
  EXPECT_EQ(partial.missing_ranks, 0b10u);
  EXPECT_EQ(a.receive[5], 6);
  ++mid;
  ASSERT_TRUE(b.Post(mid, mid).ok());
  ASSERT_TRUE(b.device->Query(0, mid, 60).ok());
  EXPECT_EQ(NextOf(*b.device).wr_id, 60u);  // the device has it
  request = a.Request(mid, mid);
  request.op = ReduceOp::kMax;
  EXPECT_EQ(end_of(request).status, WorkStatus::kOpMismatch);
  ASSERT_TRUE(a.device->Cancel(0, mid, 61).ok());
  EXPECT_EQ(NextOf(*a.device).wr_id, 61u);
  const Completion cancelled = NextOf(*b.device);
  EXPECT_EQ(cancelled.status, WorkStatus::kCancelled);
  seen.insert(cancelled.status);
  // More jobs than a device has, with a message each.
  constexpr int kJobs = 16;
  for (uint16_t jid = 2; jid <= 2 + kJobs; ++jid) {
    request = next();
    request.jid = jid;
    request.deadline = milliseconds(100);
    ASSERT_TRUE(a.device->Post({&request, 1}).ok());
  }
  for (int i = 0; i <= kJobs; ++i) {
    const WorkStatus status = NextOf(*a.device).status;
    EXPECT_EQ(status, i == 0 ? WorkStatus::kOverflow : WorkStatus::kTimeout) << i;
    seen.insert(status);
  }
  ++mid;
  ASSERT_TRUE(a.Post(mid, mid).ok());
  ASSERT_TRUE(a.device->Query(0, mid, 62).ok());
  EXPECT_EQ(NextOf(*a.device).wr_id, 62u);  // the device has it
  b.device->Close();
  const Completion dead = NextOf(*a.device);
  EXPECT_EQ(dead.status, WorkStatus::kPeerDead);
  seen.insert(dead.status);
  EXPECT_EQ(seen.size(), static_cast<size_t>(WorkStatus::kPartial) + 1);  // the last of them
}

// The other node learns of it by a packet, which may be lost.
TEST_P(PortConformance, ADeadRankEndsTheMessageAtOtherNodesToo) {
  const SiteOptions options{.nodes = 2, .ranks_per_node = 2};
  const auto site = GetParam().open(options);
  Configure(*site, options, {.nodes = 0b11});
  RankArrays a(site->device(0, 0), 1000, 0), b(site->device(0, 1), 1000, 0), c(site->device(1, 0), 1000, 0);
  RankArrays victim(site->device(1, 1), 1000, 0);
  for (RankArrays* rank : {&a, &b, &c}) ASSERT_TRUE(rank->Post(1).ok());
  ASSERT_TRUE(c.device->Query(0, 0, 60).ok());
  EXPECT_EQ(NextOf(*c.device).wr_id, 60u);  // its node has the message
  const auto begin = std::chrono::steady_clock::now();
  victim.device->Close();
  for (RankArrays* rank : {&a, &b, &c}) {
    const Completion ended = NextOf(*rank->device);
    EXPECT_EQ(ended.status, WorkStatus::kPeerDead) << WorkStatusName(ended.status);
    if (rank == &c) {
      EXPECT_EQ(ended.missing_ranks, 0b10u);
    } else {
      EXPECT_EQ(ended.missing_nodes, 0b10u);
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(900 * LONGHAUL_SLOWNESS));
}

TEST_P(PortConformance, AQueryIsAnsweredWhileOthersAreAwaited) {
  const auto site = GetParam().open({.ranks_per_node = 2});
  RankArrays rank(site->device(0, 0), 1000, 0), late(site->device(0, 1), 1000, 0);
  ASSERT_TRUE(rank.Post(1, 3).ok());
  ASSERT_TRUE(rank.device->Query(0, 3, 2).ok());
  const Completion answer = NextOf(*rank.device);
  EXPECT_EQ(answer.wr_id, 2u);
  EXPECT_EQ(answer.reason, Reason::kQuery);
  EXPECT_EQ(answer.segs_total, 4u);
  EXPECT_EQ(answer.missing_ranks, 0b10u);
  ASSERT_TRUE(late.Post(1, 3).ok());
  EXPECT_EQ(NextOf(*rank.device).wr_id, 1u);
}

TEST_P(PortConformance, CancelEndsTheMessageForAll) {
  const auto site = GetParam().open({.ranks_per_node = 3});
  RankArrays a(site->device(0, 0), 1000, 0), b(site->device(0, 1), 1000, 0);
  ASSERT_TRUE(a.Post(1).ok());
  ASSERT_TRUE(b.Post(2).ok());
  ASSERT_TRUE(a.device->Cancel(0, 0, 3).ok());
  EXPECT_EQ(NextOf(*a.device).status, WorkStatus::kCancelled);
  EXPECT_EQ(NextOf(*a.device).wr_id, 3u);
  EXPECT_EQ(NextOf(*b.device).status, WorkStatus::kCancelled);
}

// No call is made: the descriptor alone wakes the sleeper, and in time.
TEST_P(PortConformance, ASleepingRankIsWokenAtTheDeadline) {
  const auto site = GetParam().open({.ranks_per_node = 2});
  RankArrays rank(site->device(0, 0), 1000, 0);
  WorkRequest request = rank.Request(1);
  request.deadline = milliseconds(100);
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(rank.device->Post({&request, 1}).ok());
  EXPECT_EQ(NextOf(*rank.device).status, WorkStatus::kTimeout);
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(took, milliseconds(99));
  EXPECT_LT(took, milliseconds(900));  // before the poll of a second had ended
}

TEST_P(PortConformance, ADeadRankIsNamedToTheOthers) {
  const auto site = GetParam().open({.ranks_per_node = 2});
  RankArrays rank(site->device(0, 0), 1000, 0);
  RankArrays other(site->device(0, 1), 1000, 0);
  WorkRequest half = other.Request(1);
  half.seg_count = 1;
  ASSERT_TRUE(rank.Post(1).ok());
  ASSERT_TRUE(other.device->Post({&half, 1}).ok());
  EXPECT_EQ(NextOf(*other.device).status, WorkStatus::kSuccess);  // its one seg is done
  WorkRequest receive{.wr_id = 2, .opcode = Opcode::kReceive, .length = 4};
  receive.receive.key = other.receive_key;
  ASSERT_TRUE(other.device->Post({&receive, 1}).ok());
  const auto begin = std::chrono::steady_clock::now();
  other.device->Close();
  const Completion ended = NextOf(*rank.device);
  EXPECT_EQ(ended.status, WorkStatus::kPeerDead);
  EXPECT_EQ(ended.missing_ranks, 0b10u);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(900));
  EXPECT_EQ(NextOf(*other.device).status, WorkStatus::kFlushed);  // and may still be polled
  EXPECT_EQ(other.Post(2).code(), StatusCode::kFailedPrecondition);
  std::byte memory{};
  EXPECT_EQ(other.device->Register({&memory, 1}).status().code(), StatusCode::kFailedPrecondition);
}

TEST_P(PortConformance, MemoryIsRegisteredAndGivenBack) {
  const auto site = GetParam().open({.ranks_per_node = 1});
  Device& device = site->device(0, 0);
  std::vector<std::byte> memory(64);
  EXPECT_EQ(device.Register({}).status().code(), StatusCode::kInvalidArgument);
  const uint32_t key = device.Register(memory).value();
  EXPECT_TRUE(device.Deregister(key).ok());
  EXPECT_EQ(device.Deregister(key).code(), StatusCode::kNotFound);
  WorkRequest request{.wr_id = 1, .type = DataType::kInt32, .length = 64};
  request.send.key = request.receive.key = key;
  ASSERT_TRUE(device.Post({&request, 1}).ok());
  EXPECT_EQ(NextOf(device).status, WorkStatus::kProtectionError);
}

TEST_P(PortConformance, ARankIsOpenOnce) {
  const auto site = GetParam().open({.nodes = 1, .ranks_per_node = 2});
  EXPECT_EQ(site->OpenAgain(0, 1).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(site->OpenAgain(0, 2).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(site->OpenAgain(1, 0).code(), StatusCode::kInvalidArgument);
}

// A thread a rank, many messages, no order between them.
TEST_P(PortConformance, ThreadsDoNotMeet) {
  const SiteOptions options{.nodes = 2, .ranks_per_node = 2};
  const auto site = GetParam().open(options);
  Configure(*site, options, {.nodes = 0b11});
  constexpr uint32_t kMessages = 40;
  std::vector<std::thread> threads;
  for (const uint8_t node : std::initializer_list<uint8_t>{0, 1}) {
    for (const uint8_t rank : std::initializer_list<uint8_t>{0, 1}) {
      threads.emplace_back([&, node, rank] {
        RankArrays data(site->device(node, rank), 3000, 100 * node + 10 * rank);
        for (uint32_t mid = 0; mid < kMessages; ++mid) {
          ASSERT_TRUE(data.Post(mid, mid).ok());
          const Completion done = NextOf(*data.device);
          ASSERT_EQ(done.wr_id, mid);
          ASSERT_EQ(done.status, WorkStatus::kSuccess);
          ASSERT_EQ(data.receive[2999], 4 * 2999 + 220);
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(site->device(0, 0).stats().messages_done, kMessages);
  EXPECT_EQ(site->device(0, 0).stats().segs_in_use, 0u);
}

}  // namespace
}  // namespace longhaul::offload
