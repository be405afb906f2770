// From a gradient's chunks to the result that leaves for the workers.
//
//   worker 0 ----\                         /---> result window of worker 0
//                 >--- sum, fill, step ---<
//   worker 1 ----/                         \---> result window of worker 1
#include "server/round/round_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <limits>
#include <set>

#include "codec/policy/sender_memory.h"
#include "server/report/server_json.h"
#include "tests/server/fake_worker.h"
#include "tests/sim/reference_coder.h"
#include "transport/core/window/window_rx.h"
#include "transport/core/window/window_tx.h"

namespace longhaul::server {
namespace {

using control::ControlMessage;
using testing::ElementsAre;
using testing::HasSubstr;
using wire::CloseReason;
using wire::ReliabilityClass;
using Values = std::vector<float>;

constexpr auto kHigh = ReliabilityClass::kHigh;
constexpr auto kLow = ReliabilityClass::kLow;

using Change = void (*)(ServerSettings&);

ServerSettings Settings(uint32_t min_workers, LossPolicy policy, Change change) {
  ServerSettings settings;
  settings.world_size = 2;
  settings.min_workers = min_workers;
  settings.policy = policy;
  settings.bubble_threshold = 0.3;
  settings.close_ratio = 0.9;
  settings.max_model = ByteCount(4 << 20);
  settings.max_weight_share = 1;
  change(settings);
  return settings;
}

auto ClosedAs(CloseReason reason) { return ElementsAre(std::pair(transport::WindowKey{1}, reason)); }

// Two workers; chunks of a few elements.
struct Job : testing::Test {
  explicit Job(
      uint32_t min_workers = 2, LossPolicy policy = LossPolicy::kZero, Change change = [](ServerSettings&) {})
      : coordinator(Settings(min_workers, policy, change), &events, nullptr) {
    coordinator.SetNow(At(0));
    for (FakeWorker* worker : {&a, &b}) worker->connection.max_chunk_bytes = kSymbol;
    a.Join(2);
    b.Join(2);
  }
  // Declares tensor "w" of so many full chunks on both workers.
  void DeclareChunks(uint32_t chunks, const std::string& optimizer = "aggregate") {
    count = uint64_t{chunks} * elements;
    a.Declare("w", count, optimizer);
    b.Declare("w", count, optimizer);
    a.connection.TakeControl();
    b.connection.TakeControl();
  }
  Status Open(FakeWorker& worker, uint32_t id, uint32_t high, uint32_t low, uint64_t round = 0,
              bool wants_result = true, float weight = 1) {
    return worker.Open({.key = {id}, .high = high, .low = low}, 0, round, count, elements, wants_result,
                       codec::WindowKind::kGradient, weight);
  }
  Values Full(float value) const { return Values(elements, value); }
  // All chunks of the high class, of one value.
  void PushAll(FakeWorker& worker, uint32_t id, uint64_t round, float value, bool wants_result = true) {
    const auto chunks = static_cast<uint32_t>(count / elements);
    ASSERT_TRUE(Open(worker, id, chunks, 0, round, wants_result).ok());
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) worker.Send({id}, kHigh, chunk, Full(value));
  }
  // Both workers, in windows of the round's number and one.
  void PushBoth(uint64_t round, float of_a, float of_b, bool wants_result = true) {
    PushAll(a, static_cast<uint32_t>(round) + 1, round, of_a, wants_result);
    PushAll(b, static_cast<uint32_t>(round) + 1, round, of_b, wants_result);
  }
  // Of the tensor's one chunk.
  Status OpenInitial(FakeWorker& worker, uint32_t id) {
    return worker.Open({.key = {id}, .high = 1}, 0, 0, count, elements, false, codec::WindowKind::kInitial);
  }
  // In the place of the rank's first worker.
  void Replace(FakeWorker& again, uint64_t incarnation = 1) {
    again.connection.max_chunk_bytes = kSymbol;
    again.Join(2, incarnation);
    again.Declare("w", count, "aggregate");
  }
  void Tick(int64_t ms) {
    coordinator.SetNow(At(ms));
    coordinator.HandleTimeout();
    coordinator.AfterEvent();
  }
  // The first element of every chunk of the worker's newest result window, by chunk.
  std::map<uint32_t, float> ResultOf(FakeWorker& worker) {
    std::map<uint32_t, float> result;
    for (const auto& [chunk, values] : FakeWorker::ChunksOf(worker.Result())) result[chunk] = values.at(0);
    return result;
  }

  static constexpr size_t kSymbol = 64;
  Recorder events;
  Coordinator coordinator;
  FakeWorker a{coordinator, 0};
  FakeWorker b{coordinator, 1};
  const uint32_t elements = codec::ChunkElementsFor(kSymbol);
  uint64_t count = 0;
};

// A worker with the memory that the job's policy gives it.
class Remembering {
 public:
  Remembering(FakeWorker* worker, LossPolicy policy, const codec::ChunkGeometry& geometry)
      : worker_(worker),
        geometry_(geometry),
        memory_(codec::MakeSenderMemory({.policy = policy}, geometry)) {}

  // All chunks before `lost` in the high class; the others, of the low class, do not arrive. What the server
  // refuses is settled as not taken.
  void Push(uint32_t id, uint64_t round, const Values& gradient, uint32_t lost = UINT32_MAX) {
    const std::span<const float> prepared = memory_->Prepare(gradient);
    const uint32_t high = std::min(geometry_.chunks(), lost);
    ASSERT_TRUE(worker_
                    ->Open({.key = {id}, .high = high, .low = geometry_.chunks() - high}, 0, round,
                           geometry_.count, geometry_.chunk_elements)
                    .ok());
    for (uint32_t chunk = 0; chunk < high; ++chunk) {
      const auto values = geometry_.Elements(prepared, chunk);
      const bool taken = worker_->Send({id}, kHigh, chunk, Values(values.begin(), values.end())) ==
                         transport::ChunkVerdict::kTaken;
      memory_->SettleChunk(chunk, taken, values);
    }
    if (high < geometry_.chunks()) worker_->Finish({id});
    memory_->Finish();
  }

  std::span<const float> owed() const { return memory_->owed(); }

 private:
  FakeWorker* worker_;
  codec::ChunkGeometry geometry_;
  std::unique_ptr<codec::SenderMemory> memory_;
};

// --- A12: aggregate and push ---

TEST_F(Job, PushesAChunkToTheWorkersAsSoonAsItIsFinal) {
  DeclareChunks(3);
  ASSERT_TRUE(Open(a, 1, 3, 0).ok());
  ASSERT_TRUE(Open(b, 1, 3, 0).ok());
  a.Send({1}, kHigh, 2, Full(1));
  EXPECT_TRUE(a.Result().chunks.empty());
  b.Send({1}, kHigh, 2, Full(3));
  for (FakeWorker* worker : {&a, &b}) {
    const auto chunks = FakeWorker::ChunksOf(worker->Result());
    ASSERT_EQ(chunks.size(), 1u) << "the downlink starts before the uplink ends";
    EXPECT_EQ(chunks[0].first, 2u);
    EXPECT_EQ(chunks[0].second, Full(2));
  }
  EXPECT_EQ(FakeWorker::MetadataOf(a.Result()).kind, codec::WindowKind::kAggregate);
  EXPECT_EQ(a.Result().options.high_count, 3u);
  EXPECT_EQ(a.Result().options.low_count, 0u) << "every worker must have the same update";
  for (uint32_t chunk : {0u, 1u}) {
    a.Send({1}, kHigh, chunk, Full(1));
    b.Send({1}, kHigh, chunk, Full(3));
  }
  const auto report = a.Heard(ControlMessage::kRoundReport);
  ASSERT_EQ(report.size(), 1u);
  EXPECT_EQ(report[0].round_report().round(), 0u);
  EXPECT_EQ(report[0].round_report().contributors(), 2u);
  EXPECT_EQ(report[0].round_report().last_rank(), 1u);
  EXPECT_THAT(a.connection.closed_windows, ClosedAs(CloseReason::kComplete));
}

TEST_F(Job, ContributionsAreWeighted) {
  DeclareChunks(1);
  ASSERT_TRUE(Open(a, 1, 1, 0, 0, true, /*weight=*/3).ok());
  ASSERT_TRUE(Open(b, 1, 1, 0).ok());
  a.Send({1}, kHigh, 0, Full(1));
  b.Send({1}, kHigh, 0, Full(5));
  EXPECT_EQ(FakeWorker::ChunksOf(a.Result())[0].second, Full(2)) << "(3 * 1 + 1 * 5) / 4";
}

TEST_F(Job, TheOptimizerStepsOncePerRoundAndTheWorkersGetTheParameters) {
  DeclareChunks(2, "sgd:lr=0.5");
  PushBoth(0, 2, 4);
  EXPECT_EQ(FakeWorker::MetadataOf(a.Result()).kind, codec::WindowKind::kWeights);
  EXPECT_EQ(ResultOf(a), (std::map<uint32_t, float>{{0, -1.5f}, {1, -1.5f}}));
  a.CloseResult(a.connection.outgoing.begin()->first);
  b.CloseResult(b.connection.outgoing.begin()->first);
  PushBoth(1, 2, 4);
  EXPECT_EQ(ResultOf(b), (std::map<uint32_t, float>{{0, -3.0f}, {1, -3.0f}}));
  ASSERT_EQ(events.rounds.size(), 2u);
  EXPECT_EQ(events.rounds[1].round, 1u);
}

TEST_F(Job, AResultStaysWhatItWasWhileTheNextRoundIsWritten) {
  DeclareChunks(1);
  PushBoth(0, 1, 1);
  const auto& first = a.connection.outgoing.begin()->second;
  PushAll(a, 2, 1, 7);  // the worker has everything, but its CLOSE is still on its way
  PushAll(b, 2, 1, 7);
  EXPECT_EQ(FakeWorker::ChunksOf(first)[0].second, Full(1));
  EXPECT_FALSE(first.cancelled);
  PushBoth(2, 9, 9);
  EXPECT_TRUE(first.cancelled) << "two rounds on, and the worker has gone on";
}

TEST_F(Job, ResultsWaitForAFreeWindow) {
  a.connection.max_open_windows = 1;
  DeclareChunks(1);
  a.Declare("v", count, "aggregate");
  b.Declare("v", count, "aggregate");
  for (uint32_t tensor : {0u, 1u}) {
    for (FakeWorker* worker : {&a, &b}) {
      const transport::WindowKey key{tensor + 1};
      ASSERT_TRUE(worker->Open({.key = key, .high = 1, .low = 0}, tensor, 0, count, elements).ok());
      worker->Send(key, kHigh, 0, Full(static_cast<float>(tensor + 1)));
    }
  }
  ASSERT_EQ(a.connection.outgoing.size(), 1u);
  EXPECT_EQ(ResultOf(a)[0], 1);
  a.CloseResult(a.connection.outgoing.begin()->first);
  ASSERT_EQ(a.connection.outgoing.size(), 1u);
  EXPECT_EQ(ResultOf(a)[0], 2);
}

// It would be waited for without an end.
TEST_F(Job, AResultThatNoWindowOfTheWorkerHoldsEndsItsConnectionByName) {
  a.connection.max_window_bytes = 3 * kSymbol;
  DeclareChunks(4);
  PushBoth(0, 1, 1);
  ASSERT_TRUE(a.connection.closed);
  EXPECT_EQ(
      a.connection.closed->ToString(),
      "SettingsMismatch: no window of this worker holds a result of tensor \"w\": window is larger than the "
      "peer accepts");
  EXPECT_FALSE(b.connection.closed);
  EXPECT_EQ(ResultOf(b).size(), 4u);
  b.connection.max_window_bytes = 3 * kSymbol;
  b.Pull(0, 0, 1);
  ASSERT_TRUE(b.connection.closed);
  EXPECT_EQ(b.connection.closed->code(), StatusCode::kSettingsMismatch);
}

// A worker that never frees its one window must not bring the server down: what waited too long is dropped.
TEST_F(Job, AResultThatWaitedTooLongIsDropped) {
  a.connection.max_open_windows = 1;
  DeclareChunks(1);
  for (uint32_t round = 0; round < 5; ++round) {
    PushBoth(round, static_cast<float>(round), static_cast<float>(round));
  }
  EXPECT_LE(a.connection.outgoing.size(), 5u);
  EXPECT_TRUE(a.connection.outgoing.begin()->second.cancelled);
}

// --- A10: repair ---

TEST_F(Job, RepairsHighPriorityChunksFromFecAndTheSumIsAsIfNothingHadBeenLost) {
  constexpr uint32_t kChunks = 10;
  DeclareChunks(kChunks);
  ASSERT_TRUE(Open(a, 1, kChunks, 0).ok());
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) a.Send({1}, kHigh, chunk, Full(1));

  codec::ReferenceCoder coder;
  const transport::WindowOptions options{
      .key = {1}, .high_count = kChunks, .symbol_bytes = kSymbol, .fec_k = 8, .fec_depth = 1, .metadata = {}};
  transport::WindowTx tx(options, &coder);
  std::vector<std::vector<uint8_t>> chunks;
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    chunks.push_back(FakeWorker::EncodeChunk(chunk, Full(static_cast<float>(chunk))));
    ASSERT_TRUE(tx.Submit(kHigh, {}, chunks.back()).ok());
  }
  ASSERT_TRUE(Open(b, 1, kChunks, 0).ok());
  transport::WindowRx rx(tx.OpenFrame(), &coder);
  uint32_t repaired_chunks = 0;
  const std::set<uint32_t> lost = {3, 9};  // one of each block
  uint32_t sent = 0;
  while (auto item = tx.Next({.loss = 0.3, .packets_per_recovery_time = 100})) {
    std::vector<uint8_t> bytes(item->first.begin(), item->first.end());
    bytes.insert(bytes.end(), item->second.begin(), item->second.end());
    const bool drop = !item->header.repair && lost.contains(item->header.index);
    ++sent;
    if (!drop) rx.OnData(item->header, bytes);
    while (const auto chunk = rx.PollChunk()) {
      repaired_chunks += chunk->repaired ? 1 : 0;
      EXPECT_EQ(b.SendWithoutState({1}, chunk->reliability, chunk->bytes, chunk->repaired),
                transport::ChunkVerdict::kTaken);
    }
  }
  EXPECT_EQ(repaired_chunks, 2u) << "of " << sent << " packets, sources and repair";
  ASSERT_TRUE(rx.Complete());
  auto& window = b.connection.incoming_now.at({1});
  window.stats = rx.stats();
  window.high_complete = window.complete = true;
  b.Progress({1});

  const auto result = ResultOf(a);
  ASSERT_EQ(result.size(), kChunks);
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk)
    EXPECT_EQ(result.at(chunk), (1 + static_cast<float>(chunk)) / 2);
  const auto report = a.Heard(ControlMessage::kRoundReport).at(0).round_report();
  EXPECT_EQ(report.repaired_chunks(), 2u);
  EXPECT_EQ(report.lost_chunks(), 0u);
}

// --- A11: filling ---

struct CountPolicy : Job {
  CountPolicy() : Job(2, LossPolicy::kCount) {}
  // Ten chunks, the first one high; worker b loses so many of its nine low ones.
  void RoundWithLosses(uint32_t losses) {
    DeclareChunks(10);
    PushAll(a, 1, 0, 4);
    ASSERT_TRUE(Open(b, 1, 1, 9).ok());
    b.Send({1}, kHigh, 0, Full(8));
    for (uint32_t chunk = 1; chunk + losses < 10; ++chunk) b.Send({1}, kLow, chunk, Full(8));
    b.Finish({1});
    Tick(100);
  }
};

TEST_F(CountPolicy, FillsLostLowChunksOnlyAboveTheBubbleThreshold) {
  RoundWithLosses(3);  // 3 of 9 is above 0.3
  const auto result = ResultOf(a);
  ASSERT_EQ(result.size(), 10u);
  EXPECT_EQ(result.at(0), 6);
  EXPECT_EQ(result.at(9), 4) << "filled: the mean of those that arrived";
  const auto report = a.Heard(ControlMessage::kRoundReport).at(0).round_report();
  EXPECT_EQ(report.filled_chunks(), 3u);
  EXPECT_EQ(report.lost_chunks(), 3u);
  EXPECT_NEAR(report.loss(), 3.0 / 9, 1e-9);
}

TEST_F(CountPolicy, ToleratesLossesBelowTheBubbleThresholdAsTheyAre) {
  RoundWithLosses(2);  // 2 of 9 is below 0.3
  const auto result = ResultOf(a);
  EXPECT_EQ(result.at(9), 2) << "nothing arrived, nothing is made up";
  EXPECT_EQ(a.Heard(ControlMessage::kRoundReport).at(0).round_report().filled_chunks(), 0u);
}

TEST_F(CountPolicy, AWindowBelowTheCloseRatioClosesOneGraceAfterItsSenderFinished) {
  DeclareChunks(10);
  PushAll(a, 1, 0, 4);
  ASSERT_TRUE(Open(b, 1, 1, 9).ok());
  b.Send({1}, kHigh, 0, Full(8));
  b.Finish({1});
  EXPECT_TRUE(b.connection.closed_windows.empty());
  EXPECT_EQ(coordinator.NextTimeout(), At(5));
  Tick(5);
  EXPECT_THAT(b.connection.closed_windows, ClosedAs(CloseReason::kSoft));
}

struct NineOfTenHigh : Job {
  NineOfTenHigh() : Job(2, LossPolicy::kCount, [](ServerSettings& s) { s.close_ratio_high = 0.9; }) {}
  // Of b's ten high chunks and ten low ones so many high ones are missing, at the end.
  void RoundWithout(uint32_t missing) {
    DeclareChunks(20);
    PushAll(a, 1, 0, 4);
    ASSERT_TRUE(Open(b, 1, 10, 10).ok());
    for (uint32_t chunk = 0; chunk + missing < 10; ++chunk) b.Send({1}, kHigh, chunk, Full(8));
    for (uint32_t chunk = 10; chunk < 20; ++chunk) b.Send({1}, kLow, chunk, Full(8));
    b.Finish({1});
  }
};

TEST_F(NineOfTenHigh, ClosesWithNinetyPercentOfTheHighChunksAndToleratesTheRest) {
  RoundWithout(1);
  EXPECT_THAT(b.connection.closed_windows, ClosedAs(CloseReason::kRatio));
  const auto report = a.Heard(ControlMessage::kRoundReport).at(0).round_report();
  EXPECT_EQ(report.lost_chunks(), 1u);
  EXPECT_EQ(report.tolerated_chunks(), 1u);
  EXPECT_EQ(report.filled_chunks(), 0u);
  EXPECT_EQ(ResultOf(a).at(9), 2) << "a's 4 and nothing of b, over two";
}

TEST_F(NineOfTenHigh, WaitsWithFewer) {
  RoundWithout(2);
  Tick(10'000);
  EXPECT_TRUE(b.connection.closed_windows.empty());
}

// --- Stragglers ---

struct BoundedRounds : Job {
  BoundedRounds()
      : Job(2, LossPolicy::kResidual,
            [](ServerSettings& s) { s.round_bound = std::chrono::milliseconds(100); }) {}
};

TEST_F(BoundedRounds, AWorkerThatDoesNotPushIsLeftOutAtTheBoundAndTakesPartWhenItComes) {
  DeclareChunks(2);
  PushAll(a, 1, 0, 4);
  EXPECT_TRUE(ResultOf(a).empty());
  EXPECT_EQ(coordinator.NextTimeout(), At(100));
  Tick(100);
  // Its share is zero now and comes later: the mean stays one over both.
  EXPECT_EQ(ResultOf(a), (std::map<uint32_t, float>{{0, 2.0f}, {1, 2.0f}}));
  const control::RoundReport report = a.Heard(ControlMessage::kRoundReport).at(0).round_report();
  EXPECT_EQ(report.excluded(), 1u);
  EXPECT_EQ(report.lost_chunks(), 2u);
  EXPECT_EQ(report.fill_reason(), "repaid");
  // The next round does not wait for it ...
  PushAll(a, 2, 1, 4);
  EXPECT_EQ(ResultOf(a).at(0), 2.0f);
  // ... until it opens its window, for the round that it thinks is on.
  ASSERT_TRUE(Open(b, 1, 2, 0, 0).ok());
  b.Send({1}, kHigh, 0, Full(8));
  PushAll(a, 3, 2, 4);
  EXPECT_EQ(ResultOf(a).at(0), 6.0f);
  b.Send({1}, kHigh, 1, Full(8));
  EXPECT_EQ(ResultOf(a), (std::map<uint32_t, float>{{0, 6.0f}, {1, 6.0f}}));
  EXPECT_EQ(ResultOf(b), (std::map<uint32_t, float>{{0, 6.0f}, {1, 6.0f}}));
  EXPECT_EQ(coordinator.Stats().late_windows_taken, 1u);
  EXPECT_EQ(coordinator.Stats().members.at(1).excluded, 2u) << "rounds 0 and 1";
  EXPECT_EQ(events.rounds.at(0).excluded, 1u);
  EXPECT_EQ(events.rounds.at(1).excluded, 1u);
  EXPECT_EQ(events.rounds.at(2).excluded, 0u);
}

TEST_F(BoundedRounds, APushWithoutAResultIsToldItsRound) {
  DeclareChunks(2);
  PushAll(a, 1, 0, 4);
  Tick(100);
  a.Heard(ControlMessage::kPushTaken);
  PushAll(b, 1, 0, 2, /*wants_result=*/false);  // the round that it was left out of
  PushAll(a, 2, 1, 2, /*wants_result=*/false);
  for (FakeWorker* worker : {&a, &b}) {
    const auto taken = worker->Heard(ControlMessage::kPushTaken);
    ASSERT_EQ(taken.size(), 1u);
    EXPECT_EQ(taken[0].push_taken().round(), 1u);
    EXPECT_EQ(taken[0].push_taken().key(), 0u);
  }
  EXPECT_EQ(coordinator.Stats().late_windows_taken, 1u);
}

TEST_F(BoundedRounds, TheBoundOfTheFirstRoundCountsFromTheInitialValuesOn) {
  count = elements;
  b.Declare("w", count, "sgd:lr=1");
  PushAll(b, 1, 0, 4);
  Tick(500);
  EXPECT_TRUE(events.rounds.empty()) << "the other one may have the values";
  a.Declare("w", count, "sgd:lr=1", true);
  ASSERT_TRUE(OpenInitial(a, 1).ok());
  Tick(1000);
  EXPECT_TRUE(events.rounds.empty()) << "nothing to step from";
  a.Send({1}, kHigh, 0, Full(10));
  EXPECT_TRUE(events.rounds.empty()) << "now it has the time that every round has";
  EXPECT_EQ(coordinator.NextTimeout(), At(1100));
  Tick(1100);
  ASSERT_EQ(events.rounds.size(), 1u);
  EXPECT_EQ(events.rounds[0].excluded, 1u);
  EXPECT_EQ(ResultOf(b).at(0), 8.0f) << "10 - 4 / 2";
}

TEST_F(BoundedRounds, TheBoundOfTheFirstRoundHoldsWhenNobodyHadValues) {
  count = elements;
  b.Declare("w", count, "sgd:lr=1");
  PushAll(b, 1, 0, 4);
  Tick(500);
  a.Declare("w", count, "sgd:lr=1");
  EXPECT_EQ(coordinator.NextTimeout(), At(600));
  Tick(600);
  EXPECT_EQ(events.rounds.size(), 1u);
}

// Its link is slow, its PushPull is not over: it would wait for ever for what is not sent any more.
TEST_F(BoundedRounds, AResultThatAWorkerStillTakesRoundsLaterIsCompleteAndKeepsItsValues) {
  DeclareChunks(2);
  b.connection.max_open_windows = 1;
  PushBoth(0, 4, 8);  // takes the one window for results
  const auto& result = b.connection.outgoing.begin()->second;
  for (uint32_t round = 1; round < 6; ++round) {
    PushAll(a, round + 1, round, static_cast<float>(100 * round));
    Tick(200 * (round + 1));
  }
  ASSERT_EQ(a.Heard(ControlMessage::kRoundReport).size(), 6u);
  EXPECT_FALSE(result.cancelled);
  const auto chunks = FakeWorker::ChunksOf(result);
  ASSERT_EQ(chunks.size(), 2u);
  for (const auto& [chunk, values] : chunks) EXPECT_EQ(values, Full(6)) << chunk;
  // It goes on: what it has and what it wants does not mix.
  PushAll(b, 2, 1, 8);
  PushAll(a, 7, 6, 4);
  EXPECT_EQ(ResultOf(a), (std::map<uint32_t, float>{{0, 6.0f}, {1, 6.0f}}));
  b.CloseResult(b.connection.outgoing.begin()->first);
  EXPECT_EQ(ResultOf(b), (std::map<uint32_t, float>{{0, 6.0f}, {1, 6.0f}}));
}

TEST_F(BoundedRounds, AResultOf16BitsKeepsItsCodesAsLongAsAWorkerTakesThem) {
  a.result_dtype = b.result_dtype = DType::kBFloat16;
  DeclareChunks(2);
  b.connection.max_open_windows = 1;
  PushBoth(0, 4, 8);
  const auto& result = b.connection.outgoing.begin()->second;
  for (uint32_t round = 1; round < 6; ++round) {
    PushAll(a, round + 1, round, static_cast<float>(100 * round));
    Tick(200 * (round + 1));
    EXPECT_EQ(ResultOf(a).at(1), static_cast<float>(50 * round)) << "codes are of their round";
  }
  EXPECT_FALSE(result.cancelled);
  for (const auto& [chunk, values] : FakeWorker::ChunksOf(result)) EXPECT_EQ(values, Full(6)) << chunk;
}

TEST_F(BoundedRounds, AResultThatWaitsForAFreeWindowForRoundsKeepsItsValues) {
  DeclareChunks(1);
  b.connection.max_open_windows = 0;
  PushBoth(0, 4, 8);
  for (uint32_t round = 1; round < 6; ++round) {
    PushAll(a, round + 1, round, static_cast<float>(100 * round));
    Tick(200 * (round + 1));
  }
  b.connection.max_open_windows = 1;
  b.CloseResult({77});
  EXPECT_EQ(ResultOf(b), (std::map<uint32_t, float>{{0, 6.0f}}));
}

TEST_F(BoundedRounds, AWindowWithoutItsHighClassIsAskedForWhatIsMissingAndThenClosed) {
  DeclareChunks(2);
  PushAll(a, 1, 0, 4);
  ASSERT_TRUE(Open(b, 1, 2, 0).ok());
  b.Send({1}, kHigh, 0, Full(8));
  Tick(99);
  EXPECT_THAT(b.connection.requested_missing, ElementsAre());
  Tick(100);
  EXPECT_TRUE(b.connection.closed_windows.empty());
  EXPECT_THAT(b.connection.requested_missing, ElementsAre(transport::WindowKey{1}));
  Tick(100 + 4 * 60);
  ASSERT_THAT(b.connection.closed_windows, ClosedAs(CloseReason::kHard));
  EXPECT_EQ(ResultOf(a), (std::map<uint32_t, float>{{0, 6.0f}, {1, 2.0f}}));
}

// As the operator gets them who sets nothing: idle time-out 10 s.
struct UsualRounds : Job {
  explicit UsualRounds(Change change = [](ServerSettings&) {}) : Job(2, LossPolicy::kResidual, change) {}
  void TenRounds() {
    DeclareChunks(1);
    for (uint64_t round = 0; round < 10; ++round) PushBoth(round, 4, 8);
    ASSERT_EQ(events.rounds.size(), 10u);
  }
  static constexpr const char* kB = "worker rank 1 (site B, 127.0.0.1:40001) in round ";
};

TEST_F(UsualRounds, ALiveWorkerThatDoesNothingIsLeftOutNamedAndItsGradientCountsLater) {
  TenRounds();
  PushAll(a, 11, 10, 4);
  for (int64_t now = 0; now < 6000; now += 200) Tick(now);
  ASSERT_EQ(events.waiting.size(), 1u);
  EXPECT_EQ(events.waiting[0],
            "round 10 of tensor \"w\" waits for worker rank 1 (site B, 127.0.0.1:40001) (5.0 s)");
  EXPECT_EQ(coordinator.Stats().waits.size(), 1u);
  Tick(119'900);
  EXPECT_EQ(events.rounds.size(), 10u);
  EXPECT_TRUE(events.left_out.empty());
  Tick(120'000);
  ASSERT_EQ(events.rounds.size(), 11u);
  EXPECT_EQ(events.rounds[10].excluded, 1u);
  EXPECT_THAT(events.left_out, ElementsAre(kB + std::string("10")));
  EXPECT_TRUE(coordinator.Stats().members.at(1).lags);
  EXPECT_EQ(ResultOf(a).at(0), 2.0f) << "a mean over both";
  PushAll(b, 11, 10, 8);
  PushAll(a, 12, 11, 4);
  ASSERT_EQ(events.rounds.size(), 12u);
  EXPECT_EQ(ResultOf(a).at(0), 6.0f) << "here it counts";
  EXPECT_EQ(events.rounds[11].excluded, 0u);
  EXPECT_FALSE(coordinator.Stats().members.at(1).lags);
  EXPECT_TRUE(coordinator.Stats().waits.empty());
  // It has taken two minutes, and so it has four times as long from now on.
  PushAll(a, 13, 12, 4);
  Tick(120'000 + 470'000);
  EXPECT_EQ(events.rounds.size(), 12u);
  Tick(120'000 + 490'000);
  EXPECT_EQ(events.rounds.size(), 13u);
}

TEST_F(UsualRounds, TheFirstRoundWaitsForTenMinutes) {
  DeclareChunks(1);
  PushAll(a, 1, 0, 4);
  Tick(599'000);
  EXPECT_TRUE(events.rounds.empty());
  Tick(601'000);
  EXPECT_EQ(events.rounds.size(), 1u);
  EXPECT_THAT(events.left_out, ElementsAre(kB + std::string("0")));
}

TEST_F(UsualRounds, AWindowThatStandsOpenHoldsNobodyUpEither) {
  TenRounds();
  ASSERT_TRUE(Open(b, 11, 1, 0, 10).ok());
  PushAll(a, 11, 10, 4);
  Tick(119'900);
  EXPECT_EQ(events.rounds.size(), 10u);
  for (int64_t now = 120'000; now < 121'000; now += 50) Tick(now);
  EXPECT_EQ(events.rounds.size(), 11u);
  EXPECT_THAT(events.left_out, ElementsAre(kB + std::string("10")));
}

// One of two closes a round, after a grace.
struct OneOfTwo : UsualRounds {
  OneOfTwo() : UsualRounds([](ServerSettings& s) { s.quorum = 1; }) {}
};

TEST_F(OneOfTwo, ARoundWaitsForTheOthersForAGraceOnceItsQuorumIsIn) {
  TenRounds();
  Tick(1000);
  ASSERT_TRUE(Open(a, 11, 1, 0, 10).ok());
  Tick(1200);
  EXPECT_EQ(events.rounds.size(), 10u) << "a window that is open is not in";
  a.Send({11}, kHigh, 0, Full(4));
  Tick(1249);
  EXPECT_EQ(events.rounds.size(), 10u);
  Tick(1250);
  ASSERT_EQ(events.rounds.size(), 11u);
  EXPECT_THAT(events.left_out, ElementsAre(kB + std::string("10")));
  EXPECT_EQ(ResultOf(a).at(0), 2.0f) << "a mean over both";
  // Late, it counts in the round of that moment, and the next one does not wait for it again.
  PushAll(b, 11, 10, 8);
  Tick(1300);
  ASSERT_EQ(events.rounds.size(), 12u);
  EXPECT_EQ(ResultOf(b).at(0), 4.0f);
  EXPECT_EQ(coordinator.Stats().late_windows_taken, 1u);
}

// Its worker comes back while the round is open, and the round ends before it pushes again: what was in has
// counted.
TEST_F(OneOfTwo, APushThatHasCountedInPartCountsOnceWhenItComesAgainLate) {
  b.session = 7;
  FakeWorker first(coordinator, 1, 40100), again(coordinator, 1, 40101);
  first.session = again.session = 7;
  DeclareChunks(2);
  Replace(first, 1);
  PushAll(a, 1, 0, 4);
  ASSERT_TRUE(Open(first, 1, 2, 0).ok());
  first.Send({1}, kHigh, 0, Full(8));
  Replace(again, 2);
  ASSERT_EQ(again.Heard(ControlMessage::kDeclared).back().declared().next_round(), 0u);
  Tick(600'000);
  ASSERT_EQ(events.rounds.size(), 1u);
  EXPECT_EQ(ResultOf(a), (std::map<uint32_t, float>{{0, 6.0f}, {1, 2.0f}}));
  PushAll(again, 1, 0, 8);
  PushAll(a, 2, 1, 4);
  Tick(1'200'000);
  ASSERT_EQ(events.rounds.size(), 2u);
  EXPECT_EQ(ResultOf(a), (std::map<uint32_t, float>{{0, 2.0f}, {1, 6.0f}}));
  // The next one is another push, even where its worker has not heard in which round the one before counted.
  PushAll(again, 2, 1, 8);
  PushAll(a, 3, 2, 4);
  EXPECT_EQ(ResultOf(a), (std::map<uint32_t, float>{{0, 6.0f}, {1, 6.0f}}));
}

TEST_F(OneOfTwo, ARoundOfAllEndsAtOnce) {
  TenRounds();
  PushBoth(10, 4, 8);
  EXPECT_EQ(events.rounds.size(), 11u);
  EXPECT_TRUE(events.left_out.empty());
}

struct DeterministicRounds : UsualRounds {
  DeterministicRounds() : UsualRounds([](ServerSettings& s) { s.deterministic = true; }) {}
};

TEST_F(DeterministicRounds, WaitForEveryWorker) {
  TenRounds();
  PushAll(a, 11, 10, 4);
  Tick(100'000'000);
  EXPECT_EQ(events.rounds.size(), 10u);
  EXPECT_EQ(coordinator.Stats().waits.size(), 1u) << "which is said";
}

struct PatientRounds : UsualRounds {
  PatientRounds() : UsualRounds([](ServerSettings& s) { s.round_patience = 0; }) {}
};

TEST_F(PatientRounds, WaitForEveryWorkerWhenTheOperatorSaysSo) {
  TenRounds();
  PushAll(a, 11, 10, 4);
  Tick(100'000'000);
  EXPECT_EQ(events.rounds.size(), 10u);
}

TEST_F(UsualRounds, APullThatIsGivenUpHearsForWhichRoundItHasWaited) {
  DeclareChunks(1, "sgd:lr=1");
  PushAll(a, 1, 0, 4);
  a.connection.TakeControl();
  a.Pull(0, 5, 9);
  a.GiveUp(9);
  const auto refused = a.Heard(ControlMessage::kPullRefused);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].pull_refused().code(), static_cast<uint32_t>(StatusCode::kDeadlineExceeded));
  EXPECT_EQ(refused[0].pull_refused().message(),
            "round 5 of tensor \"w\" has not come, it is in round 0, which waits for worker rank 1 (site B, "
            "127.0.0.1:40001)");
  a.GiveUp(9);
  EXPECT_TRUE(a.Heard(ControlMessage::kPullRefused).empty());
}

struct ShiftJob : Job {
  ShiftJob() : Job(1, LossPolicy::kShift, [](ServerSettings& s) { s.shift_alpha = 1; }) {}
};

TEST_F(ShiftJob, AMemberThatLeavesBeginsANewEpochThatIsAnnouncedForOneRound) {
  DeclareChunks(1);
  PushBoth(0, 2, 6);  // C = 8, shifts 2 and 6
  EXPECT_EQ(ResultOf(a).at(0), 4.0f);
  a.Heard(ControlMessage::kRoundReport);
  b.Die(Status(StatusCode::kPeerDead, "silent for 10.0 s"));
  const auto report = [&] { return a.Heard(ControlMessage::kRoundReport).at(0).round_report(); };
  // Round 1, old epoch: b counts as what it usually sent.
  PushAll(a, 2, 1, 0);
  EXPECT_EQ(ResultOf(a).at(0), 4.0f);
  const auto announced = report();
  EXPECT_EQ(announced.shift_epoch(), 0u);
  EXPECT_EQ(announced.shift_epoch_round(), 3u);
  PushAll(a, 3, 2, 0);
  EXPECT_EQ(ResultOf(a).at(0), 4.0f);
  EXPECT_EQ(report().shift_epoch(), 1u);
  // Round 3, new epoch. Who has not heard of it is not counted.
  PushAll(a, 4, 3, 5);
  EXPECT_EQ(ResultOf(a).at(0), 0.0f);
  EXPECT_EQ(coordinator.Stats().epoch_refused, 1u);
}

// --- Exactly once ---

struct ResidualJob : Job {
  ResidualJob() : Job(2, LossPolicy::kResidual) {}
};

TEST_F(Job, ADuplicateContributionIsNeverAddedTwice) {
  DeclareChunks(2);
  ASSERT_TRUE(Open(a, 1, 2, 0).ok());
  ASSERT_TRUE(Open(b, 1, 2, 0).ok());
  a.Send({1}, kHigh, 0, Full(2));
  a.SendWithoutState({1}, kHigh, FakeWorker::EncodeChunk(0, Full(2)));
  b.Send({1}, kHigh, 0, Full(4));
  EXPECT_EQ(ResultOf(b).at(0), 3);
  EXPECT_EQ(coordinator.Stats().duplicate_contributions, 1u);
}

TEST_F(Job, AReplacedWorkerPushesAgainAndWhatItHadContributedCountsOnce) {
  DeclareChunks(2);
  PushAll(b, 1, 0, 4);
  ASSERT_TRUE(Open(a, 1, 2, 0).ok());
  a.Send({1}, kHigh, 0, Full(2));
  FakeWorker again(coordinator, 0, 40100);
  Replace(again);
  EXPECT_TRUE(a.connection.closed);
  EXPECT_EQ(again.Heard(ControlMessage::kDeclared).at(0).declared().next_round(), 0u) << "it is awaited";
  PushAll(again, 1, 0, 2);
  EXPECT_EQ(ResultOf(b), (std::map<uint32_t, float>{{0, 3.0f}, {1, 3.0f}}));
  EXPECT_EQ(ResultOf(again), (std::map<uint32_t, float>{{0, 3.0f}, {1, 3.0f}}));
  EXPECT_EQ(coordinator.Stats().duplicate_contributions, 1u);
}

// Another process, whose gradient is another one: none of it is taken for what its predecessor had delivered.
TEST_F(Job, ASuccessorPushesIntoTheNextRoundWhereItsPredecessorsPushIsInInPart) {
  DeclareChunks(2);
  PushAll(b, 1, 0, 4);
  ASSERT_TRUE(Open(a, 1, 2, 0).ok());
  a.Send({1}, kHigh, 0, Full(2));
  FakeWorker successor(coordinator, 0, 40100);
  successor.session = 7;
  Replace(successor);
  EXPECT_EQ(ResultOf(b).at(0), 3.0f) << "what the predecessor had delivered counts";
  const auto declared = successor.Heard(ControlMessage::kDeclared);
  ASSERT_EQ(declared.size(), 1u);
  EXPECT_EQ(declared[0].declared().next_round(), 1u);
  PushAll(b, 2, 1, 4);
  PushAll(successor, 2, 1, 6);
  EXPECT_EQ(ResultOf(successor), (std::map<uint32_t, float>{{0, 5.0f}, {1, 5.0f}}));
  EXPECT_EQ(coordinator.Stats().taken_and_dropped, 0u);
}

// Its gradient is the rank's in this round: where the predecessor's is in, nothing of it is owed.
TEST_F(ResidualJob, AReplacedWorkerDoesNotRepayWhatItsPredecessorHadContributed) {
  DeclareChunks(3);
  PushAll(b, 1, 0, 4);
  ASSERT_TRUE(Open(a, 1, 1, 2).ok());
  a.Send({1}, kHigh, 0, Full(2));
  a.Send({1}, kLow, 1, Full(2));
  FakeWorker again(coordinator, 0, 40100);
  Replace(again);
  Remembering successor(&again, LossPolicy::kResidual, {count, elements});
  successor.Push(1, 0, Values(count, 2));
  EXPECT_EQ(ResultOf(b), (std::map<uint32_t, float>{{0, 3.0f}, {1, 3.0f}, {2, 3.0f}}));
  EXPECT_THAT(successor.owed(), testing::Each(0.0f));
  EXPECT_EQ(coordinator.Stats().duplicate_contributions, 2u);
  EXPECT_EQ(coordinator.Stats().taken_and_dropped, 2u);
  PushAll(b, 2, 1, 4);
  successor.Push(2, 1, Values(count, 2));
  EXPECT_EQ(ResultOf(b), (std::map<uint32_t, float>{{0, 3.0f}, {1, 3.0f}, {2, 3.0f}}))
      << "each gradient once";
}

// All of its predecessor's is in: the round does not wait for it, and ends while its window is open.
TEST_F(ResidualJob, AReplacedWorkerDoesNotRepayWhatArrivesAfterTheRound) {
  DeclareChunks(2);
  ASSERT_TRUE(Open(b, 1, 2, 0).ok());
  b.Send({1}, kHigh, 0, Full(4));
  ASSERT_TRUE(Open(a, 1, 2, 0).ok());
  for (const uint32_t chunk : {0u, 1u}) {
    a.SendWithoutState({1}, kHigh, FakeWorker::EncodeChunk(chunk, Full(2)));
  }
  FakeWorker again(coordinator, 0, 40100);
  Replace(again);
  ASSERT_TRUE(Open(again, 1, 2, 0).ok());
  EXPECT_EQ(again.Send({1}, kHigh, 0, Full(2)), transport::ChunkVerdict::kTaken);
  b.Send({1}, kHigh, 1, Full(4));
  EXPECT_EQ(b.Heard(ControlMessage::kRoundReport).size(), 1u);
  EXPECT_EQ(again.Send({1}, kHigh, 1, Full(2)), transport::ChunkVerdict::kTaken);
  EXPECT_EQ(coordinator.Stats().taken_and_dropped, 2u);
  PushAll(b, 2, 1, 4);
  PushAll(again, 2, 1, 2);
  EXPECT_EQ(ResultOf(b), (std::map<uint32_t, float>{{0, 3.0f}, {1, 3.0f}}));
}

TEST_F(Job, APushThatComesTooLateForItsRoundCountsInTheOneInProgress) {
  DeclareChunks(1);
  PushBoth(0, 1, 1);
  ASSERT_TRUE(Open(a, 2, 1, 0, 0).ok());
  a.Send({2}, kHigh, 0, Full(2));
  PushAll(b, 2, 1, 4);
  EXPECT_EQ(ResultOf(b), (std::map<uint32_t, float>{{0, 3.0f}}));
  EXPECT_EQ(coordinator.Stats().late_windows_taken, 1u);
}

TEST_F(Job, ASecondPushIntoARoundIsExcludedAndOneOfTheFutureIsAnError) {
  DeclareChunks(1);
  PushAll(a, 1, 0, 1);
  EXPECT_FALSE(Open(a, 2, 1, 0, 0).ok());
  EXPECT_FALSE(a.connection.closed);
  PushAll(b, 1, 0, 1);
  EXPECT_FALSE(Open(a, 3, 1, 0, 2).ok());
  ASSERT_TRUE(a.connection.closed);
  EXPECT_EQ(a.connection.closed->code(), StatusCode::kProtocolViolation);
}

// --- Lost workers ---

struct OneIsEnough : Job {
  OneIsEnough() : Job(1) {}
};

TEST_F(OneIsEnough, TheRoundGoesOnWithoutALostWorkerAndKeepsWhatItHadContributed) {
  DeclareChunks(2);
  PushAll(a, 1, 0, 2);
  ASSERT_TRUE(Open(b, 1, 2, 0).ok());
  b.Send({1}, kHigh, 0, Full(4));
  b.Die(Status(StatusCode::kPeerDead, "silent for 10.0 s"));
  EXPECT_EQ(ResultOf(a), (std::map<uint32_t, float>{{0, 3.0f}, {1, 2.0f}})) << "means over the contributors";
  EXPECT_EQ(a.Heard(ControlMessage::kRoundReport).size(), 1u);
  PushAll(a, 2, 1, 6);
  EXPECT_EQ(ResultOf(a).at(0), 6) << "nobody waits for it in the next round";
}

TEST_F(OneIsEnough, AWorkerThatRejoinsInMidRoundTakesPartFromTheNextRound) {
  DeclareChunks(2);
  ASSERT_TRUE(Open(a, 1, 2, 0).ok());
  b.Die(Status(StatusCode::kPeerDead, "silent for 10.0 s"));
  FakeWorker again(coordinator, 1, 40101);
  Replace(again, 0);
  EXPECT_TRUE(again.Heard(ControlMessage::kDeclared).empty()) << "told when the round in progress is over";
  for (uint32_t chunk : {0u, 1u}) a.Send({1}, kHigh, chunk, Full(2));
  EXPECT_EQ(a.Heard(ControlMessage::kRoundReport).size(), 1u) << "the round does not wait for it";
  const auto declared = again.Heard(ControlMessage::kDeclared);
  ASSERT_EQ(declared.size(), 1u);
  EXPECT_EQ(declared[0].declared().next_round(), 1u);
  PushAll(a, 2, 1, 2);
  EXPECT_TRUE(a.Heard(ControlMessage::kRoundReport).empty()) << "now it is awaited";
  PushAll(again, 1, 1, 4);
  EXPECT_EQ(ResultOf(a).at(1), 3);
}

// The other one may wait for it, by way of another tensor or server.
TEST_F(OneIsEnough, AWorkerThatRejoinsARoundThatWaitsForAnotherTakesPartInIt) {
  DeclareChunks(2);
  ASSERT_TRUE(Open(b, 1, 2, 0).ok());
  b.Die(Status(StatusCode::kPeerDead, "silent for 10.0 s"));
  FakeWorker again(coordinator, 1, 40101);
  Replace(again, 0);
  const auto declared = again.Heard(ControlMessage::kDeclared);
  ASSERT_EQ(declared.size(), 1u);
  EXPECT_EQ(declared[0].declared().next_round(), 0u);
  PushAll(a, 1, 0, 2);
  EXPECT_TRUE(a.Heard(ControlMessage::kRoundReport).empty()) << "it is awaited";
  PushAll(again, 1, 0, 4);
  EXPECT_EQ(ResultOf(a).at(1), 3);
  const auto reports = a.Heard(ControlMessage::kRoundReport);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].round_report().lost_chunks(), 0u) << "nothing of it is missed";
}

TEST_F(Job, WithTooFewWorkersLeftTheRoundIsNotFinishedBehindTheJobsBack) {
  DeclareChunks(1);
  PushAll(a, 1, 0, 2);
  b.Die(Status(StatusCode::kPeerDead, "silent for 10.0 s"));
  EXPECT_TRUE(a.Result().cancelled);
  EXPECT_TRUE(events.rounds.empty());
  ASSERT_EQ(events.over.size(), 1u);
}

TEST_F(Job, AWorkerThatLeavesInMidRoundAbortsTheJobByName) {
  DeclareChunks(1);
  PushAll(a, 1, 0, 2);
  b.Leave();
  ASSERT_EQ(events.over.size(), 1u);
  EXPECT_EQ(events.over[0].message(),
            "worker rank 1 (site B, 127.0.0.1:40001) left in round 0 of tensor \"w\"");
}

// --- Declarations, initial values and pulls ---

TEST_F(Job, AMismatchingShapeIsRefusedToThatWorkerOnly) {
  DeclareChunks(2);
  b.Declare("w", count + 1, "aggregate", false, 5);
  const auto declared = b.Heard(ControlMessage::kDeclared).at(0).declared();
  EXPECT_EQ(declared.request(), 5u);
  EXPECT_EQ(declared.code(), static_cast<uint32_t>(StatusCode::kSettingsMismatch));
  EXPECT_THAT(declared.message(), HasSubstr("but the server has it as float32["));
  EXPECT_FALSE(b.connection.closed);
}

TEST_F(Job, ATensorBeyondTheModelBoundOrWithABadOptimizerIsRefused) {
  a.Declare("huge", 2 << 20, "aggregate");
  EXPECT_EQ(a.Heard(ControlMessage::kDeclared).at(0).declared().code(),
            static_cast<uint32_t>(StatusCode::kResourceExhausted));
  a.Declare("w", 10, "adagrad:lr=1");
  EXPECT_THAT(a.Heard(ControlMessage::kDeclared).at(0).declared().message(), HasSubstr("unknown; known are"));
}

TEST_F(Job, AnUnknownWireTypeOrAnImpossibleResultTypeIsRefusedInWords) {
  const auto answer = [&](uint32_t wire_dtype, uint32_t result_dtype) {
    ControlMessage message;
    control::Declare& declare = *message.mutable_declare();
    declare.set_request(1);
    declare.set_name("w");
    declare.set_count(8);
    declare.set_optimizer("aggregate");
    declare.set_wire_dtype(wire_dtype);
    declare.set_result_dtype(result_dtype);
    a.Say(message);
    return a.Heard(ControlMessage::kDeclared).at(0).declared();
  };
  EXPECT_THAT(answer(9, 0).message(), HasSubstr("unknown element type"));
  EXPECT_THAT(answer(0, 9).message(), HasSubstr("unknown element type"));
  EXPECT_THAT(answer(3, 3).message(),
              HasSubstr("results travel as float32, bfloat16 or float16, not as int8"));
  EXPECT_THAT(answer(3, 5).message(), HasSubstr("not as int2"));
  EXPECT_EQ(answer(3, 3).code(), static_cast<uint32_t>(StatusCode::kInvalidArgument));
  EXPECT_EQ(answer(3, 1).code(), 0u);
  EXPECT_THAT(answer(3, 2).message(), HasSubstr("int8 up, float16 down here, but the server has it as"));
  EXPECT_EQ(answer(3, 2).code(), static_cast<uint32_t>(StatusCode::kSettingsMismatch));
}

// The server's parameters go on from what workers do not see of them.
TEST_F(Job, ParametersComeDownRoundedAndStayAsTheyAre) {
  a.result_dtype = b.result_dtype = DType::kBFloat16;
  DeclareChunks(3, "sgd:lr=1");
  uint32_t request = 1;
  // From 0 to -1, and then in steps of 2^-10: a 16th of what bfloat16 can tell there from -1.
  for (uint64_t round = 0; round < 10; ++round) {
    const float step = round == 0 ? 1.0f : 0x1p-10f;
    PushBoth(round, step, step);
    const float wanted = round < 5 ? -1.0f : -1.0078125f;  // of -1 - 4 / 1024, half way, the even one
    for (FakeWorker* worker : {&a, &b}) {
      const auto& window = worker->Result();
      const auto metadata = FakeWorker::MetadataOf(window);
      EXPECT_EQ(metadata.dtype, DType::kBFloat16);
      EXPECT_EQ(metadata.chunk_elements, elements) << "as many as a gradient's, which is float32";
      EXPECT_EQ(window.options.symbol_bytes, 48) << "12 + 2 * 13, a multiple of 16";
      EXPECT_EQ(window.chunks.size(), 3u);
      for (const auto& chunk : window.chunks) EXPECT_EQ(chunk.Bytes().size(), 12 + 2 * elements);
      EXPECT_EQ(ResultOf(*worker), (std::map<uint32_t, float>{{0, wanted}, {1, wanted}, {2, wanted}}))
          << "round " << round;
    }
    a.Pull(0, 0, request++);
    EXPECT_EQ(FakeWorker::MetadataOf(a.Result()).dtype, DType::kBFloat16);
    EXPECT_EQ(ResultOf(a).at(2), wanted) << "what is pulled is what was the result";
    for (FakeWorker* worker : {&a, &b}) {
      while (!worker->connection.outgoing.empty())
        worker->CloseResult(worker->connection.outgoing.begin()->first);
    }
  }
}

TEST_F(Job, ExactlyOneWorkerSendsInitialValuesAndTheFirstStepWaitsForThem) {
  count = elements;
  a.Declare("w", count, "sgd:lr=1", true);
  b.Declare("w", count, "sgd:lr=1", true);
  EXPECT_TRUE(a.Heard(ControlMessage::kDeclared).at(0).declared().send_initial());
  EXPECT_FALSE(b.Heard(ControlMessage::kDeclared).at(0).declared().send_initial());
  b.Pull(0, 0, 3);
  PushBoth(0, 1, 1);
  EXPECT_TRUE(a.Result().chunks.empty()) << "no step from nowhere";
  ASSERT_TRUE(OpenInitial(a, 2).ok());
  a.Send({2}, kHigh, 0, Full(10));
  EXPECT_EQ(ResultOf(a).at(0), 9);
  EXPECT_EQ(a.Heard(ControlMessage::kRoundReport).size(), 1u);
}

// Every worker would train on from there, and no guard looks at values that are the first.
TEST_F(Job, InitialValuesThatAreNotFiniteEndTheirSendersConnection) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    FakeWorker& sender = std::isnan(bad) ? a : b;
    const std::string name = std::isnan(bad) ? "w" : "v";
    count = elements;
    sender.Declare(name, count, "sgd:lr=1", true);
    const uint32_t key = sender.Heard(ControlMessage::kDeclared).at(0).declared().key();
    ASSERT_TRUE(
        sender.Open({.key = {2}, .high = 1}, key, 0, count, elements, false, codec::WindowKind::kInitial)
            .ok());
    std::vector<float> values = Full(10);
    values[3] = bad;
    sender.Send({2}, kHigh, 0, values);
    ASSERT_TRUE(sender.connection.closed) << bad;
    EXPECT_THAT(sender.connection.closed->message(), HasSubstr("initial values of tensor"));
  }
}

TEST_F(Job, InitialValuesThatNobodyAskedForAreRefused) {
  DeclareChunks(1, "sgd:lr=1");
  EXPECT_FALSE(OpenInitial(a, 2).ok());
}

TEST_F(Job, APullWaitsForItsRoundAndCarriesTheValuesOfThatMoment) {
  DeclareChunks(1, "sgd:lr=1");
  a.Pull(0, 1, 77);
  EXPECT_TRUE(a.connection.outgoing.empty());
  PushBoth(0, 2, 2, false);
  ASSERT_EQ(a.connection.outgoing.size(), 1u);
  const auto metadata = FakeWorker::MetadataOf(a.Result());
  EXPECT_EQ(metadata.request, 77u);
  EXPECT_EQ(metadata.round, 1u);
  EXPECT_EQ(metadata.kind, codec::WindowKind::kWeights);
  for (uint64_t round = 1; round < 4; ++round) {
    PushBoth(round, 2, 2, false);
  }
  EXPECT_EQ(ResultOf(a).at(0), -2) << "later rounds do not change what is on its way";
}

TEST_F(Job, APullBeforeEveryoneHasDeclaredWaitsSinceSomeoneMayStillHaveValues) {
  count = elements;
  a.Declare("w", count, "sgd:lr=1");
  a.Pull(0, 0, 1);
  EXPECT_TRUE(a.connection.outgoing.empty());
  b.Declare("w", count, "sgd:lr=1");
  ASSERT_EQ(a.connection.outgoing.size(), 1u);
  EXPECT_EQ(ResultOf(a).at(0), 0) << "nobody had any: zeros";
}

// It pulls every version and closes nothing: the server's memory has a bound, and the others go on.
TEST_F(Job, APullOfAnUnknownTensorIsRefused) {
  a.Pull(4, 0, 1);
  EXPECT_EQ(a.Heard(ControlMessage::kPullRefused).at(0).pull_refused().message(), "no tensor has the key 4");
}

// --- What a broken or hostile worker sends ---

TEST_F(Job, WindowsAndChunksThatDoNotFitEndTheConnectionOnly) {
  DeclareChunks(2);
  EXPECT_FALSE(Open(a, 1, 5, 0).ok());
  ASSERT_TRUE(a.connection.closed);
  EXPECT_THAT(a.connection.closed->message(), HasSubstr("in 5 chunks of"));
  ASSERT_TRUE(Open(b, 1, 2, 0).ok());
  b.Send({1}, kHigh, 7, Full(1));
  ASSERT_TRUE(b.connection.closed);
  EXPECT_THAT(b.connection.closed->message(), HasSubstr("chunk 7 of tensor \"w\" is out of place"));
}

TEST_F(Job, ATruncatedChunkOrGarbageMetadataIsAProtocolError) {
  DeclareChunks(2);
  ASSERT_TRUE(Open(a, 1, 2, 0).ok());
  a.SendWithoutState({1}, kHigh, ByteSpan(FakeWorker::EncodeChunk(0, Full(1))).first(20));
  EXPECT_TRUE(a.connection.closed);
  wire::WindowOpenFrame open;
  const std::vector<uint8_t> garbage(7, 0xff);
  open.metadata = garbage;
  b.Happens(transport::event::WindowOpened{{9}, open});
  EXPECT_TRUE(b.connection.closed);
}

// --- The guard ---

TEST_F(Job, NothingOfAPushCountsAfterAValueThatIsNotFiniteAndTheWorkerIsNamed) {
  DeclareChunks(4);
  PushAll(a, 1, 0, 8);
  ASSERT_TRUE(Open(b, 1, 4, 0).ok());
  b.Send({1}, kHigh, 2, Full(4));
  Values bad = Full(4);
  bad.back() = std::numeric_limits<float>::quiet_NaN();
  const auto verdict = [&](uint32_t chunk, const Values& values) {
    return b.SendWithoutState({1}, kHigh, FakeWorker::EncodeChunk(chunk, values));
  };
  EXPECT_EQ(verdict(0, bad), transport::ChunkVerdict::kRefused);
  EXPECT_EQ(verdict(0, bad), transport::ChunkVerdict::kRefused) << "the same under another sequence";
  EXPECT_EQ(coordinator.Stats().rejected, 1u) << "is judged once";
  b.Send({1}, kHigh, 1, Full(4));
  b.Send({1}, kHigh, 3, Full(4));
  ASSERT_EQ(events.rejections.size(), 1u) << "once for each push";
  EXPECT_EQ(events.rejections[0].rank, 1u);
  EXPECT_EQ(events.rejections[0].tensor, "w");
  EXPECT_EQ(events.rejections[0].round, 0u);
  EXPECT_EQ(events.rejections[0].chunk, 0u);
  EXPECT_EQ(events.rejections[0].why, "not finite");
  EXPECT_THAT(events.rejected[0], HasSubstr("rank 1"));

  b.connection.incoming_now.at({1}).high_complete = true;
  b.connection.incoming_now.at({1}).complete = true;
  b.Progress({1});
  EXPECT_EQ(ResultOf(a), (std::map<uint32_t, float>{{0, 4.0f}, {1, 4.0f}, {2, 6.0f}, {3, 4.0f}}));
  const auto report = a.Heard(ControlMessage::kRoundReport).at(0).round_report();
  EXPECT_EQ(report.rejected_chunks(), 3u);
  EXPECT_EQ(report.lost_chunks(), 3u);
  EXPECT_EQ(coordinator.Stats().members[1].rejected, 3u);
  EXPECT_EQ(coordinator.Stats().members[0].rejected, 0u);

  // The next push is judged for itself.
  PushBoth(1, 8, 4);
  EXPECT_EQ(ResultOf(a).at(0), 6.0f);
  EXPECT_EQ(coordinator.Stats().rejected, 3u);
}

// Both have joined with weight 1: by default a push counts as 3 at most, three quarters of their sum.
struct BoundedWeight : Job {
  BoundedWeight() : Job(2, LossPolicy::kCount, [](ServerSettings& s) { s.max_weight_share = 0; }) {}
};

TEST_F(BoundedWeight, APushCountsForItsShareWhateverItSays) {
  DeclareChunks(1);
  ASSERT_TRUE(Open(a, 1, 1, 0, 0, true, 1e9f).ok());
  a.Send({1}, kHigh, 0, Full(-1));
  ASSERT_TRUE(Open(b, 1, 1, 0, 0, true, 1).ok());
  b.Send({1}, kHigh, 0, Full(1));
  EXPECT_EQ(ResultOf(b), (std::map<uint32_t, float>{{0, -0.5f}})) << "(1 - 3) / 4";
  const ServerStats stats = coordinator.Stats();
  EXPECT_EQ(stats.weights_bounded, 1u);
  EXPECT_EQ(stats.members[0].weights_bounded, 1u);
  EXPECT_EQ(stats.members[0].weight, 1e9f);
  EXPECT_EQ(stats.members[0].counted_weight, 3);
  EXPECT_EQ(stats.members[0].weight_share, 0.75);
  EXPECT_EQ(stats.members[0].max_weight_share, 0.75);
}

TEST_F(BoundedWeight, AWeightThatJumpsInMidJobIsBoundedByWhatTheOtherUsuallySays) {
  DeclareChunks(1);
  for (uint64_t round = 0; round < 9; ++round) {
    const auto id = static_cast<uint32_t>(round) + 1;
    const float said = round < 5 ? 64.0f : 1e9f;
    ASSERT_TRUE(Open(a, id, 1, 0, round, true, said).ok());
    ASSERT_TRUE(Open(b, id, 1, 0, round, true, 64).ok());
    a.Send({id}, kHigh, 0, Full(-1));
    b.Send({id}, kHigh, 0, Full(1));
    EXPECT_FLOAT_EQ(ResultOf(b).at(0), round < 5 ? 0.0f : -0.5f) << "round " << round;
    for (FakeWorker* worker : {&a, &b}) worker->CloseResult(worker->connection.outgoing.rbegin()->first);
  }
  EXPECT_EQ(coordinator.Stats().weights_bounded, 6u) << "both in round 0, which had the weights of the join";
  EXPECT_EQ(events.bounded, (std::vector<std::string>{"3", "3", "192", "192"}))
      << "a's first, second, fourth";
}

// --- Robust aggregation: four workers, of which the last one lies ---

struct Robust : testing::Test {
  explicit Robust(LossPolicy policy = LossPolicy::kCount) : coordinator(Of(policy), &events, nullptr) {
    coordinator.SetNow(At(0));
    for (uint32_t rank = 0; rank < 4; ++rank) {
      workers.emplace_back(coordinator, rank);
      workers.back().connection.max_chunk_bytes = Job::kSymbol;
      workers.back().Join(4);
    }
    for (FakeWorker& worker : workers) worker.Declare("w", elements, "aggregate");
  }
  static ServerSettings Of(LossPolicy policy) {
    ServerSettings settings = Settings(2, policy, [](ServerSettings& s) {
      s.aggregation = Aggregation::kTrimmedMean;
      s.bubble_threshold = 0;
    });
    settings.world_size = 4;
    return settings;
  }
  void Push(uint32_t rank, uint32_t round, float value, float weight = 1, bool lost = false) {
    FakeWorker& worker = workers[rank];
    ASSERT_TRUE(worker
                    .Open({.key = {round + 1}, .high = lost ? 0u : 1u, .low = lost ? 1u : 0u}, 0, round,
                          elements, elements, true, codec::WindowKind::kGradient, weight)
                    .ok());
    if (lost) return worker.Finish({round + 1});
    worker.Send({round + 1}, kHigh, 0, Values(elements, value));
  }
  float Result(uint32_t rank) { return FakeWorker::ChunksOf(workers[rank].Result()).at(0).second.at(0); }

  Recorder events;
  Coordinator coordinator;
  std::deque<FakeWorker> workers;
  const uint32_t elements = codec::ChunkElementsFor(Job::kSymbol);
};

TEST_F(Robust, OneLiarOfFourMovesNothingWhateverItPushesAndSays) {
  for (uint32_t round = 0; round < 3; ++round) {
    for (uint32_t rank = 0; rank < 3; ++rank) Push(rank, round, 1 + 0.1f * static_cast<float>(rank));
    Push(3, round, -1e9f, 1e9f);
    EXPECT_FLOAT_EQ(Result(0), 1.05f) << "of -1e9, 1, 1.1, 1.2: the two in the middle";
    for (FakeWorker& worker : workers) worker.CloseResult(worker.connection.outgoing.rbegin()->first);
  }
  EXPECT_EQ(coordinator.Stats().weights_bounded, 0u) << "no weight counts";
  EXPECT_EQ(coordinator.Stats().members[3].counted_weight, 1);
}

TEST_F(Robust, OfAChunkThatOneHasLostTheMeanIsThatOfTheOthers) {
  Push(0, 0, 1);
  Push(1, 0, 0, 1, /*lost=*/true);
  Push(2, 0, 3);
  Push(3, 0, 1e9f);
  coordinator.SetNow(At(100));
  coordinator.HandleTimeout();
  EXPECT_EQ(Result(0), 3) << "policy count: the median of 1, 3 and the liar's";
}

struct RobustZero : Robust {
  RobustZero() : Robust(LossPolicy::kZero) {}
};

TEST_F(RobustZero, WhatIsLostCountsAsZeroBesideTheRobustMean) {
  Push(0, 0, 1);
  Push(1, 0, 0, 1, /*lost=*/true);
  Push(2, 0, 4);
  Push(3, 0, 1e9f);
  coordinator.SetNow(At(100));
  coordinator.HandleTimeout();
  EXPECT_EQ(Result(0), 3) << "4, from three of four";
}

TEST_F(Robust, AWorkerThatIsGoneLeavesAMajority) {
  workers[1].Die(Status(StatusCode::kUnavailable, "gone"));
  Push(0, 0, 1);
  Push(2, 0, 3);
  Push(3, 0, -1e9f);
  EXPECT_EQ(Result(0), 1) << "the median of three";
}

struct NormGuard : Job {
  explicit NormGuard(LossPolicy policy = LossPolicy::kCount)
      : Job(2, policy, [](ServerSettings& s) { s.norm_guard = 10; }) {}
};

TEST_F(NormGuard, AChunkFarAboveTheUsualNormIsLeftOut) {
  DeclareChunks(2);
  for (uint64_t round = 0; round < 4; ++round) PushBoth(round, 1, 2);
  EXPECT_TRUE(events.rejections.empty());
  PushAll(a, 5, 4, 1);
  ASSERT_TRUE(Open(b, 5, 2, 0, 4).ok());
  b.Send({5}, kHigh, 0, Full(500));
  b.Send({5}, kHigh, 1, Full(3));
  ASSERT_EQ(events.rejections.size(), 1u);
  EXPECT_EQ(events.rejections[0].why, "too large");
  EXPECT_GT(events.rejections[0].excess, 100);
  EXPECT_EQ(events.rejections[0].round, 4u);
  EXPECT_EQ(ResultOf(a), (std::map<uint32_t, float>{{0, 1.0f}, {1, 2.0f}}))
      << "the others' mean, and chunk 1 as ever";
}

struct GuardedMemory : NormGuard, testing::WithParamInterface<LossPolicy> {
  GuardedMemory() : NormGuard(GetParam()) {}
};

TEST_P(GuardedMemory, AWorkerWithOneExplodedGradientIsInAgainWithItsNextOne) {
  DeclareChunks(2);
  Remembering calm(&a, GetParam(), {count, elements});
  Remembering wild(&b, GetParam(), {count, elements});
  constexpr uint64_t kExplodes = 12;
  for (uint64_t round = 0; round < 60; ++round) {
    const auto id = static_cast<uint32_t>(round + 1);
    Values gradient(count, 2);
    if (round == kExplodes) std::fill_n(gradient.begin(), elements, 5000.0f);
    calm.Push(id, round, Values(count, 1));
    wild.Push(id, round, gradient);
    const auto result = ResultOf(a);
    EXPECT_NEAR(result.at(1), 1.5, 1e-4) << "round " << round;
    if (round == kExplodes) {
      EXPECT_LE(result.at(0), 1.5) << "as if it had sent nothing, or what it is expected to send";
    } else {
      EXPECT_NEAR(result.at(0), 1.5, 1e-4) << "round " << round;
    }
  }
  ASSERT_EQ(events.rejections.size(), 1u) << "nothing of it comes again";
  EXPECT_EQ(events.rejections[0].round, kExplodes);
  EXPECT_EQ(coordinator.Stats().rejected, 1u);
}

INSTANTIATE_TEST_SUITE_P(Policies, GuardedMemory,
                         testing::Values(LossPolicy::kZero, LossPolicy::kResidual, LossPolicy::kShift),
                         [](const auto& test) { return std::string(NameOf(test.param)); });

struct RepayingNormGuard : NormGuard {
  RepayingNormGuard() : NormGuard(LossPolicy::kResidual) {}
};

// 20 rounds of a chunk are lost: what comes then is 21 times as large as usual, but no exploded gradient.
TEST_F(RepayingNormGuard, ALargeDebtIsRepaidAndAnInflatedGradientIsNotCounted) {
  DeclareChunks(2);
  Remembering calm(&a, LossPolicy::kResidual, {count, elements});
  Remembering unlucky(&b, LossPolicy::kResidual, {count, elements});
  double applied = 0;
  uint64_t round = 0;
  for (; round < 40; ++round) {
    const auto id = static_cast<uint32_t>(round + 1);
    calm.Push(id, round, Values(count, 1));
    unlucky.Push(id, round, Values(count, 2), round >= 12 && round < 32 ? 1 : UINT32_MAX);
    Tick(100 * (static_cast<int64_t>(round) + 1));
    ASSERT_EQ(events.rounds.size(), round + 1);
    applied += static_cast<double>(ResultOf(a).at(1));
  }
  EXPECT_TRUE(events.rejections.empty());
  EXPECT_NEAR(applied, 1.5 * 40, 1e-3) << "every gradient counts once";
  const auto id = static_cast<uint32_t>(round + 1);
  calm.Push(id, round, Values(count, 1));
  unlucky.Push(id, round, Values(count, 42));
  ASSERT_EQ(events.rejections.size(), 1u);
  EXPECT_EQ(events.rejections[0].rank, 1u);
  EXPECT_EQ(ResultOf(a).at(1), 0.5f);
}

TEST_F(Job, AWeightThatMakesAValueOverflowIsNamedAndNotCounted) {
  DeclareChunks(1);
  PushAll(a, 1, 0, 4);
  ASSERT_TRUE(Open(b, 1, 1, 0, 0, true, /*weight=*/1e6f).ok());
  b.Send({1}, kHigh, 0, Full(1e33f));
  ASSERT_EQ(events.rejections.size(), 1u);
  EXPECT_THAT(RejectionText(events.rejections[0], events.rejected[0]),
              testing::AllOf(HasSubstr("rank 1"), HasSubstr("pushed values that overflow a sum of float32")));
  EXPECT_FLOAT_EQ(ResultOf(a).at(0), 4.0f / (1 + 1e6f)) << "as if it had sent zero";
}

TEST_F(Job, AStepThatMakesTheModelInfiniteEndsTheJobInWords) {
  DeclareChunks(2, "sgd:lr=1e30");
  PushBoth(0, 1e10f, 1e10f);
  ASSERT_EQ(events.over.size(), 1u);
  EXPECT_EQ(events.over[0].code(), StatusCode::kAborted);
  EXPECT_THAT(events.over[0].message(), HasSubstr("tensor \"w\" became infinite in round 0"));
}

// --- What a round says about itself ---

TEST_F(CountPolicy, ARoundNamesItsThresholdItsLossesAndHowItsWindowsClosed) {
  RoundWithLosses(3);
  ASSERT_EQ(events.rounds.size(), 1u);
  const nlohmann::json round = RoundJson(events.rounds[0], coordinator.Stats());
  EXPECT_EQ(round["bubble_threshold"], 0.3);
  EXPECT_EQ(round["low_chunks"], 9);
  EXPECT_EQ(round["low_lost"], 3);
  EXPECT_EQ(round["lost_chunks"], 3);
  EXPECT_EQ(round["filled_chunks"], 3);
  EXPECT_EQ(round["tolerated_chunks"], 0);
  EXPECT_EQ(round["fill_reason"], "above_threshold");
  EXPECT_EQ(round["excluded"], 0);
  EXPECT_EQ(round["windows_closed"]["complete"], 1) << "of worker a";
  EXPECT_EQ(round["windows_closed"]["soft"], 1) << "of worker b";
  EXPECT_EQ(round["windows_closed"]["hard"], 0);
  const nlohmann::json summary = JobSummary(coordinator.Stats());
  EXPECT_EQ(summary["policy"], "count");
  EXPECT_EQ(summary["bubble_threshold"], 0.3);
  EXPECT_EQ(summary["windows_closed"], round["windows_closed"]);
  EXPECT_EQ(summary["filled_chunks"], 3);
}

TEST_F(CountPolicy, WhatIsToleratedIsCountedOverTheRounds) {
  RoundWithLosses(2);
  const nlohmann::json round = RoundJson(events.rounds.at(0), coordinator.Stats());
  EXPECT_EQ(round["tolerated_chunks"], 2);
  EXPECT_EQ(round["filled_chunks"], 0);
  EXPECT_EQ(round["fill_reason"], "below_threshold");
  EXPECT_EQ(JobSummary(coordinator.Stats())["tolerated_chunks"], 2);
}

TEST_F(BoundedRounds, ExcludedWorkersAreCounted) {
  DeclareChunks(2);
  PushAll(a, 1, 0, 8);
  Tick(100);
  ASSERT_EQ(events.rounds.size(), 1u);
  EXPECT_EQ(RoundJson(events.rounds[0], coordinator.Stats())["excluded"], 1);
  EXPECT_EQ(JobSummary(coordinator.Stats())["rounds_excluded"], 1);
}

TEST_F(BoundedRounds, HardClosesAreCounted) {
  DeclareChunks(2);
  PushAll(a, 1, 0, 8);
  ASSERT_TRUE(Open(b, 1, 2, 0).ok());
  b.Send({1}, kHigh, 0, Full(4));
  Tick(100);  // asks for what is missing
  Tick(1000);
  ASSERT_EQ(events.rounds.size(), 1u);
  const nlohmann::json closed = RoundJson(events.rounds[0], coordinator.Stats())["windows_closed"];
  EXPECT_EQ(closed["hard"], 1);
  EXPECT_EQ(closed["complete"], 1);
}

// Each pull counts while it waits: else those that were given up would be 4,096, and shut its worker out.
TEST_F(Job, PullsThatAreGivenUpLeaveRoomForOthers) {
  DeclareChunks(1, "sgd:lr=1");
  uint32_t request = 1;
  for (; request <= Pulls::kMaxWaiting; ++request) {
    a.Pull(0, 5, request);
    a.GiveUp(request);
  }
  a.connection.TakeControl();
  a.Pull(0, 0, request);
  EXPECT_TRUE(a.Heard(ControlMessage::kPullRefused).empty());
  EXPECT_EQ(a.connection.outgoing.size(), 1u) << "it is answered";
}

TEST_F(ShiftJob, AWeightThatIsNotThatOfTheJoinEndsTheConnection) {
  DeclareChunks(1);
  EXPECT_FALSE(Open(a, 1, 1, 0, 0, true, 2).ok());
  ASSERT_TRUE(a.connection.closed);
  EXPECT_EQ(a.connection.closed->ToString(),
            "ProtocolViolation: push of round 0 of tensor \"w\" in round 0: its weight is not the one it "
            "joined with");
}

// --- For whom a round waits that has no version 0 yet: for what it lacks, not for those who have pushed ---

std::string WhatItWaitsFor(FakeWorker& worker) {
  worker.connection.TakeControl();
  worker.Pull(0, 5, 9);
  worker.GiveUp(9);
  const auto refused = worker.Heard(ControlMessage::kPullRefused);
  return refused.size() == 1 ? refused[0].pull_refused().message() : "";
}

TEST_F(Job, WithoutValuesARoundWaitsForThoseThatHaveNotDeclared) {
  count = elements;
  a.Declare("w", count, "sgd:lr=1");
  PushAll(a, 1, 0, 4);
  EXPECT_THAT(WhatItWaitsFor(a), HasSubstr("in round 0, which waits for worker rank 1 (site B,"));
}

TEST_F(Job, WithoutValuesARoundWaitsForTheWorkerThatWasAskedForThem) {
  count = elements;
  a.Declare("w", count, "sgd:lr=1");
  b.Declare("w", count, "sgd:lr=1", true);
  PushAll(a, 1, 0, 4);
  PushAll(b, 1, 0, 4);
  EXPECT_THAT(WhatItWaitsFor(a), HasSubstr("in round 0, which waits for worker rank 1 (site B,"));
}

TEST_F(OneIsEnough, AWindowThatIsOpenWhenItsWorkerIsLostIsCountedAsExcluded) {
  DeclareChunks(2);
  PushAll(a, 1, 0, 2);
  ASSERT_TRUE(Open(b, 1, 2, 0).ok());
  b.Send({1}, kHigh, 0, Full(4));
  b.Die(Status(StatusCode::kPeerDead, "silent for 10.0 s"));
  ASSERT_EQ(events.rounds.size(), 1u);
  const nlohmann::json closed = RoundJson(events.rounds[0], coordinator.Stats())["windows_closed"];
  EXPECT_EQ(closed["complete"], 1);
  EXPECT_EQ(closed["excluded"], 1);
}

}  // namespace
}  // namespace longhaul::server
