#include "tests/offload/port_conformance.h"

#include <poll.h>

#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

namespace longhaul::offload {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Until a completion is there; the wait is on the file descriptor, 20 s at most.
Completion Next(Device& device) {
  const auto end = std::chrono::steady_clock::now() + seconds(20);
  Completion completion;
  while (device.Poll({&completion, 1}) == 0) {
    EXPECT_TRUE(device.RequestNotify().ok());
    pollfd wait{device.fd(), POLLIN, 0};
    poll(&wait, 1, 1000);
    if (std::chrono::steady_clock::now() > end) {
      ADD_FAILURE() << "no completion";
      return {};
    }
  }
  return completion;
}

struct Buffers {
  Buffers(Device& of, size_t elements, int32_t value) : device(&of), send(elements), receive(elements) {
    std::iota(send.begin(), send.end(), value);
    send_key = of.Register(std::as_writable_bytes(std::span(send))).value();
    receive_key = of.Register(std::as_writable_bytes(std::span(receive))).value();
  }
  WorkRequest Request(uint64_t wr_id, uint32_t mid = 0) const {
    WorkRequest request;
    request.wr_id = wr_id;
    request.type = DataType::kInt32;
    request.mid = mid;
    request.length = send.size() * 4;
    request.send.key = send_key;
    request.receive.key = receive_key;
    return request;
  }
  Status Post(uint64_t wr_id, uint32_t mid = 0) {
    const WorkRequest request = Request(wr_id, mid);
    return device->Post({&request, 1});
  }

  Device* device;
  std::vector<int32_t> send;
  std::vector<int32_t> receive;
  uint32_t send_key = 0;
  uint32_t receive_key = 0;
};

void Configure(PortSite& site, const SiteOptions& options, const JobConfig& config) {
  for (uint8_t node = 0; node < options.nodes; ++node) {
    ASSERT_TRUE(site.device(node, 0).Configure(0, config, 999).ok());
    ASSERT_EQ(Next(site.device(node, 0)).status, WorkStatus::kSuccess);
  }
  if (!options.aggregator) return;
  WorkRequest request;
  request.opcode = Opcode::kConfig;
  request.config = &config;
  request.root_node = options.nodes;
  ASSERT_TRUE(site.device(0, 0).Post({&request, 1}).ok());
  ASSERT_EQ(Next(site.device(0, 0)).status, WorkStatus::kSuccess);
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
    std::vector<std::unique_ptr<Buffers>> ranks;
    for (uint8_t node = 0; node < c.nodes; ++node) {
      for (const uint8_t rank : std::initializer_list<uint8_t>{0, 1}) {
        ranks.push_back(std::make_unique<Buffers>(site->device(node, rank), 10'000, 10 * node + rank));
      }
    }
    for (auto& rank : ranks) ASSERT_TRUE(rank->Post(5).ok());
    for (auto& rank : ranks) {
      const Completion done = Next(*rank->device);
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
  Buffers rank(site->device(0, 0), 10, 0);
  std::vector<WorkRequest> list = {rank.Request(1, 1), rank.Request(2, 2), rank.Request(3, 3)};
  list[1].opcode = static_cast<Opcode>(77);
  size_t bad = 99;
  EXPECT_EQ(rank.device->Post(list, &bad).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(bad, 1u);
  EXPECT_EQ(Next(*rank.device).wr_id, 1u);  // what came before it is done, what came after is not begun
  Completion none;
  EXPECT_EQ(rank.device->Poll({&none, 1}), 0u);
}

TEST_P(PortConformance, WhatNoRequestCanBeIsRefusedAndTheNextIsTaken) {
  const auto site = GetParam().open({.ranks_per_node = 1});
  Buffers rank(site->device(0, 0), 10, 0);
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
    EXPECT_EQ(Next(*rank.device).wr_id, id);
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
  Buffers rank(site->device(0, 0), 10, 0);
  std::vector<WorkRequest> list;
  for (uint32_t i = 0; i < 6; ++i) list.push_back(rank.Request(i, i));
  size_t bad = 0;
  EXPECT_EQ(rank.device->Post(list, &bad).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(bad, 4u);
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(Next(*rank.device).wr_id, i);
  EXPECT_TRUE(rank.Post(4, 4).ok());
  EXPECT_EQ(Next(*rank.device).wr_id, 4u);
}

TEST_P(PortConformance, OrdinaryDatagramsArriveUnchangedBetweenCollectives) {
  if (GetParam().loses_datagrams) GTEST_SKIP() << "that one may be lost";
  const SiteOptions options{.nodes = 2, .ranks_per_node = 2};
  const auto site = GetParam().open(options);
  Configure(*site, options, {.nodes = 0b11});
  std::vector<std::unique_ptr<Buffers>> ranks;
  for (const uint8_t node : std::initializer_list<uint8_t>{0, 1}) {
    for (const uint8_t rank : std::initializer_list<uint8_t>{0, 1})
      ranks.push_back(std::make_unique<Buffers>(site->device(node, rank), 5000, 7));
  }
  Buffers from(site->device(0, 1), 100, 1234), to(site->device(1, 0), 100, 0);
  WorkRequest receive{.wr_id = 70, .opcode = Opcode::kReceive, .length = 400};
  receive.receive.key = to.receive_key;
  ASSERT_TRUE(to.device->Post({&receive, 1}).ok());
  ASSERT_TRUE(ranks[0]->Post(1).ok());
  WorkRequest send{.wr_id = 80, .opcode = Opcode::kSend, .root_node = 1, .root_rank = 0, .length = 400};
  send.send.key = from.send_key;
  ASSERT_TRUE(from.device->Post({&send, 1}).ok());
  for (size_t i = 1; i < 4; ++i) ASSERT_TRUE(ranks[i]->Post(1).ok());
  EXPECT_EQ(Next(site->device(0, 0)).wr_id, 1u);
  EXPECT_EQ(Next(site->device(0, 1)).wr_id, 80u);
  EXPECT_EQ(Next(site->device(0, 1)).wr_id, 1u);
  EXPECT_EQ(Next(site->device(1, 0)).wr_id, 70u);
  EXPECT_EQ(Next(site->device(1, 0)).wr_id, 1u);
  EXPECT_EQ(Next(site->device(1, 1)).wr_id, 1u);
  EXPECT_EQ(to.receive, from.send);
  for (auto& rank : ranks) EXPECT_EQ(rank->receive[10], 4 * 17);
}

TEST_P(PortConformance, AQueryIsAnsweredWhileOthersAreAwaited) {
  const auto site = GetParam().open({.ranks_per_node = 2});
  Buffers rank(site->device(0, 0), 1000, 0), late(site->device(0, 1), 1000, 0);
  ASSERT_TRUE(rank.Post(1, 3).ok());
  ASSERT_TRUE(rank.device->Query(0, 3, 2).ok());
  const Completion answer = Next(*rank.device);
  EXPECT_EQ(answer.wr_id, 2u);
  EXPECT_EQ(answer.reason, Reason::kQuery);
  EXPECT_EQ(answer.segs_total, 4u);
  EXPECT_EQ(answer.missing_ranks, 0b10u);
  ASSERT_TRUE(late.Post(1, 3).ok());
  EXPECT_EQ(Next(*rank.device).wr_id, 1u);
}

TEST_P(PortConformance, CancelEndsTheMessageForAll) {
  const auto site = GetParam().open({.ranks_per_node = 3});
  Buffers a(site->device(0, 0), 1000, 0), b(site->device(0, 1), 1000, 0);
  ASSERT_TRUE(a.Post(1).ok());
  ASSERT_TRUE(b.Post(2).ok());
  ASSERT_TRUE(a.device->Cancel(0, 0, 3).ok());
  EXPECT_EQ(Next(*a.device).status, WorkStatus::kCancelled);
  EXPECT_EQ(Next(*a.device).wr_id, 3u);
  EXPECT_EQ(Next(*b.device).status, WorkStatus::kCancelled);
}

// No call is made: the descriptor alone wakes the sleeper, and in time.
TEST_P(PortConformance, ASleepingRankIsWokenAtTheDeadline) {
  const auto site = GetParam().open({.ranks_per_node = 2});
  Buffers rank(site->device(0, 0), 1000, 0);
  WorkRequest request = rank.Request(1);
  request.deadline = milliseconds(100);
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(rank.device->Post({&request, 1}).ok());
  EXPECT_EQ(Next(*rank.device).status, WorkStatus::kTimeout);
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(took, milliseconds(99));
  EXPECT_LT(took, milliseconds(900));  // before the poll of a second had ended
}

TEST_P(PortConformance, ADeadRankIsNamedToTheOthers) {
  const auto site = GetParam().open({.ranks_per_node = 2});
  Buffers rank(site->device(0, 0), 1000, 0);
  Buffers other(site->device(0, 1), 1000, 0);
  WorkRequest half = other.Request(1);
  half.seg_count = 1;
  ASSERT_TRUE(rank.Post(1).ok());
  ASSERT_TRUE(other.device->Post({&half, 1}).ok());
  EXPECT_EQ(Next(*other.device).status, WorkStatus::kSuccess);  // its one seg is done
  WorkRequest receive{.wr_id = 2, .opcode = Opcode::kReceive, .length = 4};
  receive.receive.key = other.receive_key;
  ASSERT_TRUE(other.device->Post({&receive, 1}).ok());
  const auto begin = std::chrono::steady_clock::now();
  other.device->Close();
  const Completion ended = Next(*rank.device);
  EXPECT_EQ(ended.status, WorkStatus::kPeerDead);
  EXPECT_EQ(ended.missing_ranks, 0b10u);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(900));
  EXPECT_EQ(Next(*other.device).status, WorkStatus::kFlushed);  // and may still be polled
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
  EXPECT_EQ(Next(device).status, WorkStatus::kProtectionError);
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
        Buffers data(site->device(node, rank), 3000, 100 * node + 10 * rank);
        for (uint32_t mid = 0; mid < kMessages; ++mid) {
          ASSERT_TRUE(data.Post(mid, mid).ok());
          const Completion done = Next(*data.device);
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
