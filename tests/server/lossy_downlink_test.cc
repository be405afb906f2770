// Downlink lossy, at the server: what may be lost of a result, and what of it comes again.
//
//   values of a round ---> high: missed before, changed most ---> arrives
//                     \--> low: the rest --------------------x-> stays as it was, high in the next round
#include "server/results/lossy_downlink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/random.h"
#include "codec/policy/state_hash.h"
#include "tests/server/fake_worker.h"

namespace longhaul::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;
using transport::ChunkBitmap;
using Values = std::vector<float>;

constexpr uint32_t kChunks = 20;
constexpr codec::ChunkGeometry kGeometry{.count = 2 * kChunks, .chunk_elements = 2};

std::set<uint32_t> Set(const ChunkBitmap& bitmap) {
  std::set<uint32_t> set;
  for (uint32_t i = 0; i < bitmap.size(); ++i) {
    if (bitmap.Test(i)) set.insert(i);
  }
  return set;
}

ChunkBitmap Missed(std::initializer_list<uint32_t> chunks) {
  ChunkBitmap bitmap(kChunks);
  for (const uint32_t chunk : chunks) bitmap.Set(chunk);
  return bitmap;
}

// In slices of a few chunks.
void Begin(LossyDownlink& downlink, uint64_t round) {
  downlink.BeginRound(round);
  WorkBudget few(40);
  while (!downlink.Rank(few)) {
    EXPECT_FALSE(downlink.ranked());
    few = WorkBudget(40);
  }
}

// Rounds in which chunk 3 and then 7 change most, the others alike.
struct Downlink : testing::Test {
  void Round(uint64_t round) {
    Begin(downlink, round);
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      const float change = chunk == 3 ? 9.0f : chunk == 7 ? 8.0f : 1.0f;
      downlink.ChangedBy(chunk, Values{0, 0}, Values{change, 0});
    }
  }
  LossyDownlink downlink{kGeometry, {.high_share = 0.1, .high_energy = 0, .hash_rounds = 4}};
};

TEST_F(Downlink, AWorkerOfWhichNothingIsKnownGetsEverything) {
  Round(0);
  EXPECT_EQ(downlink.Low(0, 0).count(), 0u) << "its first result";
  Round(1);
  EXPECT_EQ(downlink.Low(0, 1).count(), 0u) << "the receipt of round 0 is not here";
  downlink.OnReceipt(0, 0, Missed({}));
  EXPECT_GT(downlink.Low(0, 1).count(), 0u);
  EXPECT_EQ(downlink.Low(1, 1).count(), 0u) << "another worker";
  Round(2);
  EXPECT_EQ(downlink.Low(0, 2).count(), 0u) << "it has not had round 1";
  downlink.OnReceipt(0, 1, Missed({}));
  downlink.Forget(0);
  EXPECT_EQ(downlink.Low(0, 2).count(), 0u) << "another incarnation";
}

TEST_F(Downlink, WhatChangedMostAndWhatWasMissedIsHigh) {
  Round(0);
  downlink.OnReceipt(0, 0, Missed({5, 11}));
  Round(1);
  std::set<uint32_t> low = Set(downlink.Low(0, 1));
  EXPECT_EQ(low.size(), kChunks - 4);
  for (const uint32_t high : {3u, 7u, 5u, 11u}) EXPECT_FALSE(low.contains(high)) << high;
  downlink.OnReceipt(0, 1, Missed({1}));
  EXPECT_EQ(downlink.stats().lost, 3u);
  EXPECT_EQ(downlink.stats().repaid, 2u);
  Round(2);
  low = Set(downlink.Low(0, 2));
  EXPECT_FALSE(low.contains(1));
  EXPECT_TRUE(low.contains(5)) << "repaid";
}

TEST_F(Downlink, InAHashRoundEverythingIsHigh) {
  for (uint64_t round = 0; round < 12; ++round) {
    Round(round);
    const bool hash = round % 4 == 3;
    EXPECT_EQ(downlink.Low(0, round).count() == 0, hash || round == 0) << round;
    downlink.OnReceipt(0, round, Missed({}));
  }
}

// The bound on how old a replica's chunk may be, whatever is lost, skipped or late; and that it is used:
// whenever the round before is known, all that is neither owed nor among the high share may be lost.
TEST(LossyDownlink, NothingIsMissedTwiceInARow) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Random random(seed);
    const double share = 0.05 + 0.9 * random.Uniform();
    const auto high = static_cast<uint32_t>(std::ceil(share * kChunks));
    LossyDownlink downlink(kGeometry, {.high_share = share, .high_energy = 0, .hash_rounds = 7});
    ChunkBitmap before(kChunks);  // what the worker missed in the round before
    bool known = false;           // the server has heard of it
    uint64_t lost = 0;            // told to the server
    uint64_t newest = 0;          // of them, in the newest round
    uint64_t rounds_with_low = 0;
    for (uint64_t round = 0; round < 100; ++round) {
      Begin(downlink, round);
      for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
        downlink.ChangedBy(chunk, Values{0, 0}, Values{static_cast<float>(random.Uniform()), 0});
      }
      const std::string when = "seed " + std::to_string(seed) + " round " + std::to_string(round);
      if (random.Uniform() < 0.1) {  // pushed without wanting the result: every chunk is old
        before = Missed({});
        for (uint32_t chunk = 0; chunk < kChunks; ++chunk) before.Set(chunk);
        known = false;
        continue;
      }
      const ChunkBitmap low = downlink.Low(0, round);
      const bool may_lose = known && !codec::IsHashRound(round, 7);
      if (may_lose) {
        ASSERT_GE(low.count() + high + before.count(), kChunks) << when;
        ASSERT_LE(low.count() + high, kChunks) << when;
      } else {
        ASSERT_EQ(low.count(), 0u) << when;
      }
      ChunkBitmap missed(kChunks);
      for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
        ASSERT_FALSE(low.Test(chunk) && before.Test(chunk)) << when << ": missed before";
        if (low.Test(chunk) && random.Uniform() < 0.6) missed.Set(chunk);
      }
      rounds_with_low += low.count() > 0 ? 1 : 0;
      before = missed;
      known = random.Uniform() >= 0.1;  // else its CLOSE is lost
      if (!known) continue;
      downlink.OnReceipt(0, round, missed);
      lost += newest = missed.count();
    }
    EXPECT_EQ(downlink.stats().lost, lost) << seed;
    EXPECT_EQ(downlink.stats().repaid, lost - newest) << seed;
    if (high < kChunks) {
      EXPECT_GT(rounds_with_low, 20u) << seed;
    }
  }
}

// Of the round before a hash round (4 is, in rounds 3, 7, ...), by what the worker missed of it.
TEST_F(Downlink, TellsTheHashOfWhatAWorkerHas) {
  for (uint64_t round = 0; round < 3; ++round) {
    Round(round);
    downlink.OnReceipt(0, round, round == 2 ? Missed({5, 11}) : Missed({}));
  }
  // Round() takes every chunk from {0, 0} to {change, 0}.
  Values values;
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    const bool missed = chunk == 5 || chunk == 11;
    values.push_back(missed ? 0.0f : chunk == 3 ? 9.0f : chunk == 7 ? 8.0f : 1.0f);
    values.push_back(0);
  }
  Round(3);
  EXPECT_EQ(downlink.ReplicaHash(0, 2), codec::ReplicaHash(kGeometry, values));
  EXPECT_EQ(downlink.ReplicaHash(0, 1), std::nullopt) << "not before a hash round";
  EXPECT_EQ(downlink.ReplicaHash(1, 2), std::nullopt) << "nothing is known of it";
  downlink.Forget(0);
  EXPECT_EQ(downlink.ReplicaHash(0, 2), std::nullopt);
}

// --- The whole server core, with played workers ---

ServerSettings Settings() {
  ServerSettings settings;
  settings.world_size = 2;
  settings.policy = LossPolicy::kZero;
  settings.max_model = ByteCount(4 << 20);
  settings.downlink = longhaul::Downlink::kLossy;
  settings.high_share = 0.2;
  settings.hash_rounds = 3;
  return settings;
}

struct LossyJob : testing::Test {
  LossyJob() : coordinator(Settings(), nullptr, nullptr) {
    coordinator.SetNow(At(0));
    for (FakeWorker* worker : {&a, &b}) worker->connection.max_chunk_bytes = kSymbol;
    a.Join(2);
    b.Join(2);
  }
  void Declare(const std::string& optimizer) {
    a.Declare("w", count, optimizer);
    b.Declare("w", count, optimizer);
  }
  void Open(FakeWorker& worker, uint64_t round) {
    const transport::WindowKey key{static_cast<uint32_t>(round) + 1};
    ASSERT_TRUE(worker.Open({.key = key, .high = kChunks, .low = 0}, 0, round, count, elements).ok());
  }
  void Send(FakeWorker& worker, uint64_t round, uint32_t chunk, float value) {
    worker.Send({static_cast<uint32_t>(round) + 1}, wire::ReliabilityClass::kHigh, chunk,
                Values(elements, value));
  }
  // Both push the same; chunk 4 changes most.
  void Round(uint64_t round) {
    Open(a, round);
    Open(b, round);
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      for (FakeWorker* worker : {&a, &b}) Send(*worker, round, chunk, chunk == 4 ? 5.0f : 1.0f);
    }
  }
  // The chunks of the newest result that are low, in their order.
  static std::vector<uint32_t> Low(FakeWorker& worker) {
    std::vector<uint32_t> low;
    const auto chunks = FakeWorker::ChunksOf(worker.Result());
    for (size_t i = 0; i < chunks.size(); ++i) {
      const bool is_low = worker.Result().chunks[i].reliability == wire::ReliabilityClass::kLow;
      if (is_low) low.push_back(chunks[i].first);
    }
    return low;
  }
  static void CloseNewest(FakeWorker& worker, const std::vector<uint32_t>& lost = {}) {
    worker.CloseResult(worker.connection.outgoing.rbegin()->first, lost);
  }

  static constexpr size_t kSymbol = 64;
  static constexpr uint32_t kChunks = 10;
  Coordinator coordinator;
  FakeWorker a{coordinator, 0};
  FakeWorker b{coordinator, 1};
  const uint32_t elements = codec::ChunkElementsFor(kSymbol);
  const uint64_t count = uint64_t{kChunks} * elements;
};

TEST_F(LossyJob, WhatAWorkerMissedIsHighInItsNextResult) {
  Declare("sgd:lr=1");
  Round(0);
  EXPECT_TRUE(Low(a).empty());
  EXPECT_EQ(a.Result().options.low_count, 0u);
  CloseNewest(a);
  CloseNewest(b);
  Round(1);
  const std::vector<uint32_t> low = Low(a);
  EXPECT_EQ(low.size(), 8u) << "a fifth of ten is high";
  EXPECT_EQ(std::ranges::count(low, 4u), 0) << "it changes most";
  EXPECT_EQ(a.Result().options.low_count, low.size());
  EXPECT_EQ(a.Result().options.high_count + low.size(), kChunks);
  const uint32_t missed = low[2];
  CloseNewest(a, {2});
  CloseNewest(b);
  EXPECT_EQ(coordinator.Stats().result_chunks_lost, 1u);
  // Round 2 is a hash round, in which the debt is paid as well; so the one after it shows nothing of it.
  Round(2);
  EXPECT_TRUE(Low(a).empty());
  CloseNewest(a);
  CloseNewest(b);
  EXPECT_EQ(coordinator.Stats().result_chunks_repaid, 1u);
  Round(3);
  EXPECT_EQ(std::ranges::count(Low(a), missed), 1);
  CloseNewest(a, {2});
  CloseNewest(b);
  Round(4);
  EXPECT_EQ(std::ranges::count(Low(a), missed), 0) << "missed in round 3";
  EXPECT_EQ(std::ranges::count(Low(b), missed), 1) << "b has it";
}

TEST_F(LossyJob, TheWindowOpensWithTheFirstFinalChunk) {
  Declare("sgd:lr=1");
  Round(0);
  Open(a, 1);
  Open(b, 1);
  Send(a, 1, 0, 1);
  EXPECT_EQ(a.connection.outgoing.size(), 1u) << "round 0's";
  CloseNewest(a);  // comes late, but before anything had to be decided
  CloseNewest(b);
  Send(b, 1, 0, 1);
  EXPECT_EQ(a.connection.outgoing.size(), 1u);
  EXPECT_GT(a.Result().options.low_count, 0u);
  EXPECT_THAT(FakeWorker::ChunksOf(a.Result()), testing::SizeIs(1));
}

TEST_F(LossyJob, WithoutTheReceiptOfTheRoundBeforeEverythingIsHigh) {
  Declare("sgd:lr=1");
  Round(0);
  CloseNewest(b);
  Round(1);
  EXPECT_TRUE(Low(a).empty()) << "its CLOSE is on its way";
  EXPECT_FALSE(Low(b).empty());
}

TEST_F(LossyJob, HashRoundsTellTheHashOfTheValues) {
  Declare("sgd:lr=1");
  for (uint64_t round = 0; round < 6; ++round) {
    Round(round);
    CloseNewest(a);
    CloseNewest(b);
  }
  const auto reports = a.Heard(control::ControlMessage::kRoundReport);
  ASSERT_EQ(reports.size(), 6u);
  for (const auto& message : reports) {
    const control::RoundReport& report = message.round_report();
    ASSERT_EQ(report.has_state_hash(), report.round() % 3 == 2) << report.round();
    if (!report.has_state_hash()) continue;
    Values values(count);
    for (uint64_t i = 0; i < count; ++i) {
      const float step = i / elements == 4 ? 5.0f : 1.0f;
      values[i] = -step * static_cast<float>(report.round() + 1);
    }
    EXPECT_EQ(report.state_hash(), codec::StateHash(values)) << report.round();
  }
  EXPECT_EQ(coordinator.Stats().state_hashes, 2u);
  // Nothing was missed in rounds 1 and 4.
  for (const uint64_t round : {2, 5}) {
    Values before(count);
    for (uint64_t i = 0; i < count; ++i) {
      before[i] = -(i / elements == 4 ? 5.0f : 1.0f) * static_cast<float>(round);
    }
    const control::RoundReport& report = reports[round].round_report();
    EXPECT_TRUE(report.has_replica_hash());
    EXPECT_EQ(report.replica_hash(),
              codec::ReplicaHash({.count = count, .chunk_elements = elements}, before));
  }
  EXPECT_FALSE(reports[3].round_report().has_replica_hash());
}

// Hashes are of what workers have: of 16 bits that is not what the server has.
TEST_F(LossyJob, HashesOfResultsOf16BitsAreOfWhatArrives) {
  a.result_dtype = b.result_dtype = DType::kBFloat16;
  Declare("sgd:lr=1.001");
  uint32_t missed = 0;
  for (uint64_t round = 0; round < 3; ++round) {
    Round(round);
    EXPECT_EQ(FakeWorker::MetadataOf(a.Result()).chunk_elements, elements);
    if (round == 1) missed = Low(a).at(2);
    CloseNewest(a, round == 1 ? std::vector<uint32_t>{2} : std::vector<uint32_t>{});
    CloseNewest(b);
  }
  const auto arrived_after = [&](uint64_t rounds) {
    Values values(count);
    for (uint64_t i = 0; i < count; ++i) {
      for (uint64_t round = 0; round < rounds; ++round)
        values[i] -= 1.001f * (i / elements == 4 ? 5.0f : 1.0f);
    }
    std::vector<float> room;
    const auto arrived = codec::AsArrived(DType::kBFloat16, values, &room);
    EXPECT_NE(arrived[0], values[0]);
    return Values(arrived.begin(), arrived.end());
  };
  const auto reports = a.Heard(control::ControlMessage::kRoundReport);
  ASSERT_EQ(reports.size(), 3u);
  const control::RoundReport& report = reports[2].round_report();
  EXPECT_EQ(report.state_hash(), codec::StateHash(arrived_after(3)));
  ASSERT_TRUE(report.has_replica_hash());
  const codec::ChunkGeometry geometry{.count = count, .chunk_elements = elements};
  const Values before = arrived_after(1);
  Values has = arrived_after(2);
  std::ranges::copy(geometry.Elements(std::span(before), missed),
                    geometry.Elements(std::span(has), missed).begin());
  EXPECT_EQ(report.replica_hash(), codec::ReplicaHash(geometry, has));
}

TEST_F(LossyJob, AMeanGradientIsRefused) {
  Declare("aggregate");
  const auto answer = a.Heard(control::ControlMessage::kDeclared);
  ASSERT_EQ(answer.size(), 1u);
  EXPECT_EQ(answer[0].declared().code(), static_cast<uint32_t>(StatusCode::kInvalidArgument));
  EXPECT_THAT(answer[0].declared().message(), HasSubstr("--downlink reliable"));
}

}  // namespace
}  // namespace longhaul::server
