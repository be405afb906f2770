// The engine's small parts: pool, wheel, store, memory, queues.
#include <gtest/gtest.h>

#include <map>

#include "base/random.h"
#include "offload/engine/completions.h"
#include "offload/engine/control_store.h"
#include "offload/engine/deadline_wheel.h"
#include "offload/engine/memory_table.h"
#include "offload/engine/orphans.h"
#include "offload/engine/transfer.h"

namespace longhaul::offload {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

Instant At(int64_t us) { return Instant::FromNanoseconds(us * 1000); }

TEST(SegPool, NoMessageStarvesTheOthers) {
  SegPool pool(8, 64);
  uint32_t first = 0, second = 0;
  while (pool.Take(1)) ++first;
  while (pool.Take(2)) ++second;
  EXPECT_EQ(first, 5u);  // as many as stayed free, and one
  EXPECT_EQ(second, 2u);
  EXPECT_EQ(pool.most(), 7u);
  pool.ReleaseAllOf(1);
  EXPECT_EQ(pool.in_use(), 2u);
  EXPECT_EQ(pool.held_by(1), 0u);
}

TEST(SegPool, WhatWaitsLeavesAShareFree) {
  for (const auto& [turn, most] :
       {std::pair(SegPool::Turn::kAfterRanks, 6u), {SegPool::Turn::kOutOfOrder, 4u}}) {
    SegPool pool(8, 64);
    for (uint16_t owner = 0; owner < 16; ++owner) pool.Take(owner, turn);
    EXPECT_EQ(pool.in_use(), most);
  }
}

TEST(SegPool, UnitsDoNotOverlap) {
  SegPool pool(4, 128);
  for (int i = 0; i < 2; ++i) {
    SegPool::Unit* const unit = pool.Find(*pool.Take(static_cast<uint16_t>(i)));
    std::fill_n(unit->data, 128, static_cast<std::byte>(i + 1));
  }
  EXPECT_EQ(pool.Find({0, 0})->data[127], std::byte{1});
  EXPECT_EQ(pool.Find({1, 0})->data[0], std::byte{2});
}

// Against a plain list, with times from microseconds to minutes.
TEST(DeadlineWheel, GivesEveryTimerOnceAndInTime) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  DeadlineWheel wheel(500);
  std::map<uint64_t, std::pair<Instant, DeadlineWheel::Timer>> pending;
  Instant now = At(1);
  for (uint64_t what = 0; what < 20'000; ++what) {
    const auto choice = random.Below(10);
    if (choice < 6) {
      const Duration in = microseconds(random.Below(choice < 1 ? 60'000'000 : choice < 3 ? 100 : 30'000));
      const auto timer = wheel.Add(now + in, what);
      if (pending.size() == 500) {
        EXPECT_EQ(timer, DeadlineWheel::kNone);
      } else {
        pending[what] = {now + in, timer};
      }
    } else if (choice == 6 && !pending.empty()) {
      auto victim = pending.begin();
      std::advance(victim, static_cast<long>(random.Below(pending.size())));
      wheel.Cancel(victim->second.second);
      EXPECT_EQ(victim->second.second, DeadlineWheel::kNone);
      pending.erase(victim);
    } else {
      Instant first = Instant::Infinite();
      for (const auto& [_, timer] : pending) first = std::min(first, timer.first);
      ASSERT_EQ(wheel.Next(), first);
      now += microseconds(random.Below(choice == 7 ? 5'000'000 : 2000));
      while (const auto due = wheel.Expire(now)) {
        ASSERT_TRUE(pending.contains(*due));
        ASSERT_LE(pending[*due].first, now);
        pending.erase(*due);
      }
      for (const auto& [_, timer] : pending) ASSERT_GT(timer.first, now);
    }
    ASSERT_EQ(wheel.size(), pending.size());
  }
}

Collective MessageOf(uint16_t jid, uint32_t mid, uint32_t generation = 0) {
  Collective what;
  what.jid = jid;
  what.mid = mid;
  what.generation = generation;
  what.nodes = 1;
  what.ranks = 1;
  what.seg_bytes = 64;
  what.length = 640;
  what.segs = 10;
  return what;
}

TEST(ControlStore, FindsMessagesAndHowTheyEnded) {
  ControlStore store;
  EXPECT_EQ(store.FindJob(7), nullptr);
  ASSERT_TRUE(store.Configure(7, {.nodes = 5}));
  EXPECT_EQ(store.FindJob(7)->nodes, 5u);
  Operation* const op = store.Begin(MessageOf(7, 3, 2));
  ASSERT_NE(op, nullptr);
  EXPECT_EQ(store.Find(7, 3), op);
  EXPECT_EQ(store.Find(7, 4), nullptr);
  EXPECT_EQ(store.Find(8, 3), nullptr);
  store.End(*op, WorkStatus::kTimeout);
  EXPECT_EQ(store.Find(7, 3), nullptr);
  const auto ended = store.FindEnded(7, 3);
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->generation, 2u);
  EXPECT_EQ(ended->status, WorkStatus::kTimeout);
  EXPECT_FALSE(store.FindEnded(7, 4));
  EXPECT_FALSE(store.FindEnded(7, 3 + 1024));
}

TEST(ControlStore, WhatIsTooOldToBeRememberedIsOver) {
  ControlStore store;
  ASSERT_TRUE(store.Configure(0, {}));
  store.End(*store.Begin(MessageOf(0, UINT32_MAX - 5)), WorkStatus::kSuccess);
  store.End(*store.Begin(MessageOf(0, 1500)), WorkStatus::kSuccess);  // numbers wrap
  EXPECT_EQ(store.FindEnded(0, 1500 - 1024)->status, WorkStatus::kFlushed);
  EXPECT_FALSE(store.FindEnded(0, 1500 - 1023));
  EXPECT_EQ(store.FindEnded(0, UINT32_MAX)->status, WorkStatus::kFlushed);
}

TEST(ControlStore, WhatEndsTooLateDoesNotReplaceANewerEnd) {
  ControlStore store;
  ASSERT_TRUE(store.Configure(0, {}));
  Operation* const late = store.Begin(MessageOf(0, 5));
  store.End(*store.Begin(MessageOf(0, 5 + 1024)), WorkStatus::kSuccess);
  store.End(*late, WorkStatus::kTimeout);
  ASSERT_TRUE(store.FindEnded(0, 5 + 1024));
  EXPECT_EQ(store.FindEnded(0, 5 + 1024)->status, WorkStatus::kSuccess);
  EXPECT_EQ(store.FindEnded(0, 5)->status, WorkStatus::kFlushed);
}

TEST(ControlStore, KeepsTheTablesOfShortMessagesAlone) {
  ControlStore store;
  ASSERT_TRUE(store.Configure(0, {}));
  Collective what = MessageOf(0, 1);
  Operation* const op = store.Begin(what);
  store.End(*op, WorkStatus::kSuccess);
  EXPECT_GE(op->missing.capacity(), 10u);
  what.mid = 2;
  what.segs = 1 << 20;
  what.nodes = 0b11;
  ASSERT_EQ(store.Begin(what), op);
  op->scratch = ZeroedArray<std::byte>(4096);
  store.End(*op, WorkStatus::kSuccess);
  EXPECT_EQ(op->scratch.size(), 0u);
  EXPECT_EQ(op->missing.capacity() + op->ready.capacity() + op->segs.capacity(), 0u);
}

TEST(ControlStore, TimesOfAJobHaveABound) {
  ControlStore store;
  const JobConfig config{.skip_after = Duration(INT64_MAX - 1), .deadline = Duration(INT64_MAX - 1)};
  ASSERT_TRUE(store.Configure(0, config));
  EXPECT_EQ(store.FindJob(0)->deadline, std::chrono::hours(24 * 365));
  EXPECT_EQ(store.FindJob(0)->skip_after, std::chrono::hours(24 * 365));
}

TEST(ControlStore, HasRoomFor16JobsAnd64Messages) {
  ControlStore store;
  for (uint16_t jid = 0; jid < 16; ++jid) {
    ASSERT_TRUE(store.Configure(jid, {}));
    ASSERT_NE(store.Begin(MessageOf(jid, 0)), nullptr);
  }
  EXPECT_FALSE(store.Configure(16, {}));
  store.End(*store.Find(4, 0), std::nullopt);
  EXPECT_TRUE(store.Configure(16, {}));  // in the place of the idle one
  EXPECT_EQ(store.FindJob(4), nullptr);
  for (uint32_t mid = 1; mid < 50; ++mid) ASSERT_NE(store.Begin(MessageOf(3, mid)), nullptr);
  EXPECT_EQ(store.Begin(MessageOf(3, 50)), nullptr);
}

TEST(MemoryTable, KeysAreOfOneRankAndOneRegistration) {
  MemoryTable table;
  std::vector<std::byte> memory(100);
  EXPECT_FALSE(table.Register(0, {}).ok());
  const uint32_t key = *table.Register(1, memory);
  EXPECT_TRUE(table.Find(1, {key, 40}, 60));
  EXPECT_FALSE(table.Find(1, {key, 40}, 61));
  EXPECT_FALSE(table.Find(1, {key, 101}, 0));
  EXPECT_FALSE(table.Find(2, {key, 0}, 1));
  table.Use(key, true);
  EXPECT_EQ(table.Deregister(1, key).code(), StatusCode::kFailedPrecondition);
  table.Use(key, false);
  EXPECT_EQ(table.Deregister(2, key).code(), StatusCode::kNotFound);
  EXPECT_TRUE(table.Deregister(1, key).ok());
  EXPECT_EQ(table.Deregister(1, key).code(), StatusCode::kNotFound);
  const uint32_t fresh = *table.Register(1, memory);
  EXPECT_NE(fresh, key);
  EXPECT_FALSE(table.Find(1, {key, 0}, 1));
  for (int i = 1; i < 1024; ++i) ASSERT_TRUE(table.Register(1, memory).ok());
  EXPECT_EQ(table.Register(1, memory).status().code(), StatusCode::kResourceExhausted);
  table.Forget(1);
  EXPECT_FALSE(table.Find(1, {fresh, 0}, 1));
}

TEST(CompletionQueue, EveryRequestHasAPlace) {
  CompletionQueue queue(3);
  EXPECT_TRUE(queue.Reserve() && queue.Reserve() && queue.Reserve());
  EXPECT_FALSE(queue.Reserve());
  for (uint64_t i = 0; i < 3; ++i) queue.Push({.wr_id = i});
  EXPECT_FALSE(queue.Reserve());  // until it is polled
  Completion c;
  ASSERT_TRUE(queue.Pop(&c));
  EXPECT_EQ(c.wr_id, 0u);
  EXPECT_TRUE(queue.Reserve());
}

TEST(CompletionQueue, NotifiesOnceForEachRequest) {
  CompletionQueue queue(4);
  ASSERT_TRUE(queue.Reserve() && queue.Reserve());
  queue.Push({});
  EXPECT_FALSE(queue.TakeNotification());  // not asked for
  queue.Arm();
  EXPECT_TRUE(queue.TakeNotification());
  queue.Push({});
  EXPECT_FALSE(queue.TakeNotification());
}

TEST(Transfer, IsBoundedAndAnswersComeInOrder) {
  Transfer transfer(2);
  EXPECT_TRUE(transfer.QueueSend({.sid = 1}) && transfer.QueueSend({.sid = 2}));
  EXPECT_FALSE(transfer.QueueSend({.sid = 3}));
  EXPECT_EQ(transfer.NextSend()->sid, 1u);
  EXPECT_EQ(transfer.NextSend()->sid, 2u);
  EXPECT_FALSE(transfer.NextSend());
  int answers = 0;
  while (transfer.QueueAnswer(0, {})) ++answers;
  EXPECT_EQ(answers, 4096);
}

TEST(Transfer, TimeOutsFollowRoundTripsAndDouble) {
  Transfer transfer(1);
  EXPECT_EQ(transfer.TimeoutOf(1), milliseconds(5));
  for (int i = 0; i < 100; ++i) transfer.OnRoundTrip(milliseconds(2));
  EXPECT_NEAR(static_cast<double>(transfer.TimeoutOf(1).count()), 2e6, 1e4);
  EXPECT_EQ(transfer.TimeoutOf(2), 2 * transfer.TimeoutOf(1));
  EXPECT_EQ(transfer.TimeoutOf(100), milliseconds(250));
  for (int i = 0; i < 100; ++i) transfer.OnRoundTrip(microseconds(3));
  EXPECT_EQ(transfer.TimeoutOf(1), microseconds(500));
}

TEST(Orphans, AreRefusedUntilThereIsNothingOfThemForAsLongAsOneLives) {
  const JobConfig job{.nodes = 0b11, .deadline = milliseconds(50)};
  const Duration quiet = milliseconds(2 * 50 + 250 + 2 * 100);
  Instant now = Instant::FromNanoseconds(1'000'000'000);
  Orphans orphans;
  Header header;
  header.jid = 1;
  header.mid = 0;
  header.generation = 3;
  EXPECT_FALSE(orphans.Refuses(now, header, job));
  Collective what;
  what.jid = 1;
  what.generation = 3;
  orphans.OnEnd(now, what, job);
  for (int i = 0; i < 3; ++i) {  // each of them begins the time anew
    now += quiet - milliseconds(1);
    EXPECT_TRUE(orphans.Refuses(now, header, job)) << i;
  }
  Header other = header;
  other.generation = 4;
  EXPECT_FALSE(orphans.Refuses(now, other, job)) << "another attempt";
  other = header;
  other.mid = Orphans::kRemembered;
  EXPECT_FALSE(orphans.Refuses(now, other, job)) << "another message";
  other = header;
  other.jid = 2;
  EXPECT_FALSE(orphans.Refuses(now, other, job)) << "of another job";
  other = header;
  other.generation = 2;
  EXPECT_TRUE(orphans.Refuses(now, other, job)) << "an attempt before";
  what.jid = 2;  // with numbers like those of the other job
  orphans.OnEnd(now, what, job);
  EXPECT_TRUE(orphans.Refuses(now, header, job));
  now += quiet;
  EXPECT_FALSE(orphans.Refuses(now, header, job));
}

TEST(ShareOf, SharesAreWholeSegsAndCoverTheMessage) {
  for (const uint64_t length : {uint64_t{4}, uint64_t{1024}, uint64_t{8000}, uint64_t{6 * 1024}}) {
    uint64_t end = 0;
    for (uint32_t i = 0; i < 6; ++i) {
      const Share share = ShareOf(length, 1024, i, 6);
      EXPECT_EQ(share.offset, std::min(end, length));
      EXPECT_TRUE(share.offset % 1024 == 0 || share.length == 0);
      end = share.offset + share.length;
    }
    EXPECT_EQ(end, length);
  }
}

}  // namespace
}  // namespace longhaul::offload
