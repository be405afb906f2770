// What fewer than half of the workers cannot do to the others, whatever they push, declare and pull.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "server/round/pulls.h"
#include "tests/server/fake_worker.h"

namespace longhaul::server {
namespace {

using testing::HasSubstr;
using wire::ReliabilityClass;

struct FiveWorkers : testing::Test {
  static constexpr uint32_t kWorkers = 5;

  explicit FiveWorkers(void (*change)(ServerSettings&) = [](ServerSettings&) {})
      : coordinator(Settings(change), &events, nullptr) {
    coordinator.SetNow(At(0));
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      workers.push_back(std::make_unique<FakeWorker>(coordinator, rank));
      workers[rank]->connection.max_chunk_bytes = 64;
    }
    for (auto& worker : workers) worker->Join(kWorkers);
    DeclareAll("w", elements);
  }
  static ServerSettings Settings(void (*change)(ServerSettings&)) {
    ServerSettings settings;
    settings.world_size = settings.min_workers = kWorkers;
    settings.max_model = ByteCount(4 << 20);
    change(settings);
    return settings;
  }
  void DeclareAll(const std::string& name, uint64_t count) {
    for (auto& worker : workers) worker->Declare(name, count, "sgd:lr=1");
    for (auto& worker : workers) worker->connection.TakeControl();
  }
  void Push(uint32_t rank, uint64_t round, float value) {
    const transport::WindowKey key{++windows[rank]};
    ASSERT_TRUE(workers[rank]->Open({.key = key, .high = 1}, 0, round, elements, elements, false).ok());
    workers[rank]->Send(key, ReliabilityClass::kHigh, 0, std::vector<float>(elements, value));
  }
  // Up to `end` ms, in steps.
  void Pass(int64_t end, int64_t step = 500) {
    for (; now_ms < end; now_ms += step) {
      coordinator.SetNow(At(now_ms));
      coordinator.HandleTimeout();
      coordinator.AfterEvent();
    }
  }

  Recorder events;
  Coordinator coordinator;
  std::vector<std::unique_ptr<FakeWorker>> workers;
  uint32_t windows[kWorkers] = {};
  const uint32_t elements = codec::ChunkElementsFor(64);
  int64_t now_ms = 0;
};

// The others do something else for ten minutes: two that push on get a round in the time for which a round
// waits.
TEST_F(FiveWorkers, TheOthersPauseIsNotItsModel) {
  uint64_t round = 0;
  for (; round < 20; ++round) {
    Pass(now_ms + 1000);
    for (uint32_t rank = 0; rank < kWorkers; ++rank) Push(rank, round, 1);
  }
  ASSERT_EQ(events.rounds.size(), 20u);
  const int64_t begin = now_ms;
  while (now_ms < begin + 600'000) {
    Pass(now_ms + 1000);
    if (events.rounds.size() != round) continue;
    Push(3, round, 1);
    Push(4, round++, 1);
  }
  EXPECT_LE(events.rounds.size(), 20u + 5) << "12 idle time-outs a round";
  EXPECT_GE(events.rounds.size(), 20u + 4) << "the job goes on all the same";
  EXPECT_THAT(events.left_out, testing::SizeIs(testing::Ge(12u)));
  // Three of five are enough: rounds go on as fast as they push.
  const uint64_t before = events.rounds.size();
  Push(0, round - 1, 1);
  for (int i = 0; i < 500; ++i) {
    Pass(now_ms + 1000);
    if (events.rounds.size() != round) continue;
    for (uint32_t rank : {0u, 3u, 4u}) Push(rank, round, 1);
    ++round;
  }
  EXPECT_GE(events.rounds.size(), before + 300);
}

// One that has begun a round that others know nothing of is not what is said of the round that waits for it.
TEST_F(FiveWorkers, AWaitIsNotHiddenBehindAnother) {
  workers[4]->Declare("junk", elements, "sgd:lr=1");
  ASSERT_TRUE(workers[4]->Open({.key = {++windows[4]}, .high = 1}, 1, 0, elements, elements, false).ok());
  Pass(1000);
  for (uint32_t rank = 0; rank < 4; ++rank) Push(rank, 0, 1);
  Pass(30'000);
  ASSERT_FALSE(events.waiting.empty());
  for (const std::string& text : events.waiting) {
    EXPECT_THAT(text, HasSubstr("round 0 of tensor \"w\" waits for worker rank 4"));
  }
}

TEST_F(FiveWorkers, ADeclarationIsNotHiddenBehindAnother) {
  const uint64_t large = (3 << 20) / sizeof(float);  // more than one worker's part
  workers[4]->Declare("junk", large, "sgd:lr=1");
  Pass(1000);
  for (uint32_t rank = 0; rank < 2; ++rank) workers[rank]->Declare("v", large, "sgd:lr=1");
  Pass(30'000);
  ASSERT_FALSE(events.waiting.empty());
  for (const std::string& text : events.waiting) EXPECT_THAT(text, HasSubstr("\"v\""));
}

// It reads none of its answers.
TEST_F(FiveWorkers, OnesPullsHoldUpNoOthers) {
  for (uint64_t round = 0; round < 2 * Pulls::kMaxPinnedModels; ++round) {
    for (uint32_t rank = 0; rank < kWorkers; ++rank) Push(rank, round, -1);
    workers[4]->Pull(0, 0, static_cast<uint32_t>(round) + 1);
  }
  for (uint32_t rank = 0; rank < 4; ++rank) {
    workers[rank]->Pull(0, 0, 1);
    EXPECT_EQ(workers[rank]->connection.outgoing.size(), 1u) << rank;
  }
}

// So many that fewer cannot.
TEST_F(FiveWorkers, APullThatWaitsForMemorySaysForWhom) {
  for (uint32_t rank = 0; rank < Pulls::kMaxPinnedModels; ++rank) {
    for (uint32_t each = 0; each < kWorkers; ++each) Push(each, rank, -1);
    workers[rank]->Pull(0, 0, 1);
  }
  for (uint32_t each = 0; each < kWorkers; ++each) Push(each, Pulls::kMaxPinnedModels, -1);
  workers[4]->Pull(0, 0, 7);
  EXPECT_TRUE(workers[4]->connection.outgoing.empty());
  EXPECT_EQ(coordinator.Stats().pulls_held, 1u);
  Pass(10'000);
  const std::string why = "a pull of tensor \"w\" (answers that are not taken hold the memory) waits for";
  ASSERT_FALSE(events.waiting.empty());
  EXPECT_THAT(events.waiting.back(), HasSubstr(why + " worker"));
  workers[4]->GiveUp(7);
  const auto refused = workers[4]->Heard(control::ControlMessage::kPullRefused);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_THAT(refused[0].pull_refused().message(), HasSubstr(why));
  // One snapshot is free.
  workers[4]->Pull(0, 0, 8);
  workers[0]->CloseResult(workers[0]->connection.outgoing.begin()->first);
  EXPECT_EQ(workers[4]->connection.outgoing.size(), 1u);
}

}  // namespace
}  // namespace longhaul::server
