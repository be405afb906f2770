// Downlink lossy, at the worker: its replica, when a partial result is enough, and the proof by hash.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "codec/policy/state_hash.h"
#include "tests/worker/session_harness.h"
#include "worker/client/replica.h"

namespace longhaul::worker {
namespace {

using testing::HasSubstr;
using transport::ChunkBitmap;
using Values = std::vector<float>;

// --- Replica ---

struct ReplicaTest : testing::Test {
  ReplicaTest() { Write(1); }
  void Write(float value) { std::ranges::fill(replica.writable(), value); }
  uint32_t HashOf(float value) const { return codec::StateHash(Values(100, value)); }
  static ChunkBitmap All() { return Received({}); }
  // All but these.
  static ChunkBitmap Received(std::initializer_list<uint32_t> missing) {
    ChunkBitmap received(10);
    for (uint32_t chunk = 0; chunk < received.size(); ++chunk) {
      if (std::ranges::find(missing, chunk) == missing.end()) received.Set(chunk);
    }
    return received;
  }
  static constexpr codec::ChunkGeometry kResults{.count = 100, .chunk_elements = 10};
  Replica replica{kResults, 4};
};

// In round 2 two chunks do not arrive; the hash of round 3 comes with one of what the worker had then.
TEST_F(ReplicaTest, WhatItHadBeforeAHashRoundIsCompared) {
  Values expected(100, 1);
  std::ranges::fill(kResults.Elements(std::span(expected), 4), 0.5f);
  std::ranges::fill(kResults.Elements(replica.writable(), 4), 0.5f);
  EXPECT_TRUE(replica.OnResult(2, Received({4, 7})).ok());
  Write(2);
  EXPECT_TRUE(replica.OnReplicaHash(1, 12345).ok()) << "of another round";
  EXPECT_TRUE(replica.OnReplicaHash(2, codec::ReplicaHash(kResults, expected)).ok());
  EXPECT_EQ(replica.stats().agreed, 1u);
}

TEST_F(ReplicaTest, ADifferenceBeforeAHashRoundIsNamed) {
  EXPECT_TRUE(replica.OnResult(2, All()).ok());
  Values other(100, 1);
  other[42] = 1.5f;
  const Status status = replica.OnReplicaHash(2, codec::ReplicaHash(kResults, other));
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("after round 2"));
  EXPECT_EQ(replica.stats().mismatches, 1u);
}

TEST_F(ReplicaTest, AChunkThatIsMissingTwiceInARowIsNamed) {
  EXPECT_TRUE(replica.OnResult(0, All()).ok());
  EXPECT_TRUE(replica.OnResult(1, Received({4, 7})).ok());
  EXPECT_TRUE(replica.OnResult(2, Received({5})).ok());
  EXPECT_TRUE(replica.OnResult(4, Received({4})).ok()) << "it was repaid in between";
  const Status status = replica.OnResult(5, Received({3, 4}));
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("chunk 4 of the result of round 5"));
}

TEST_F(ReplicaTest, AgreesWithTheServerWhicheverComesFirst) {
  EXPECT_TRUE(replica.OnResult(3, All()).ok());
  EXPECT_TRUE(replica.OnServerHash(3, HashOf(1)).ok());
  Write(2);
  EXPECT_TRUE(replica.OnServerHash(7, HashOf(2)).ok());
  EXPECT_TRUE(replica.OnResult(7, All()).ok());
  EXPECT_EQ(replica.stats().agreed, 2u);
  EXPECT_EQ(replica.stats().mismatches, 0u);
}

TEST_F(ReplicaTest, OneDamagedBitIsFoundAndNamed) {
  for (const bool servers_first : {false, true}) {
    Replica damaged(kResults, 4);
    auto* bytes = reinterpret_cast<uint8_t*>(damaged.writable().data());
    std::ranges::copy(Values(100, 1), damaged.writable().begin());
    bytes[250] ^= 0x10;
    const Status first = servers_first ? damaged.OnServerHash(3, HashOf(1)) : damaged.OnResult(3, All());
    EXPECT_TRUE(first.ok());
    const Status second = servers_first ? damaged.OnResult(3, All()) : damaged.OnServerHash(3, HashOf(1));
    EXPECT_EQ(second.code(), StatusCode::kDataLoss);
    EXPECT_THAT(second.message(), HasSubstr("after round 3"));
    EXPECT_EQ(damaged.stats().mismatches, 1u);
    EXPECT_EQ(damaged.stats().agreed, 0u);
  }
}

// The next round may be writing when the hash comes.
TEST_F(ReplicaTest, TheHashIsOfTheRoundNotOfLaterValues) {
  EXPECT_TRUE(replica.OnResult(3, All()).ok());
  Write(2);
  EXPECT_TRUE(replica.OnServerHash(3, HashOf(1)).ok());
  EXPECT_EQ(replica.stats().agreed, 1u);
}

TEST_F(ReplicaTest, AHashOfARoundWithoutResultProvesNothing) {
  EXPECT_TRUE(replica.OnResult(2, All()).ok());
  EXPECT_TRUE(replica.OnServerHash(3, 12345).ok());
  EXPECT_TRUE(replica.OnResult(7, All()).ok());
  EXPECT_TRUE(replica.OnServerHash(11, 12345).ok());
  EXPECT_EQ(replica.stats().agreed + replica.stats().mismatches, 0u);
}

TEST_F(ReplicaTest, ChunksMayBeLostOnlyOnTopOfTheRoundBefore) {
  EXPECT_EQ(replica.CheckPartial(0).code(), StatusCode::kProtocolViolation) << "nothing to keep";
  EXPECT_TRUE(replica.OnResult(0, All()).ok());
  EXPECT_TRUE(replica.CheckPartial(1).ok());
  EXPECT_EQ(replica.CheckPartial(2).code(), StatusCode::kProtocolViolation) << "round 1 is not here";
  EXPECT_TRUE(replica.OnResult(2, All()).ok());
  EXPECT_THAT(replica.CheckPartial(3).message(), HasSubstr("hash"));
}

// --- The session ---

constexpr uint32_t kChunks = 5;

struct LossyResult : testing::Test {
  LossyResult() {
    h.spec.downlink = Downlink::kLossy;
    h.spec.hash_rounds = 3;
    h.connection.stats_now.smoothed_rtt = std::chrono::milliseconds(40);
    h.JoinAndStart();
    w = h.DeclareTensor("w", count);
  }
  // A push, its gradient delivered, and the window of its result.
  void Push(uint32_t round, uint32_t low) {
    step = {};
    h.session.PushPull(w, gradient, model, step.Callback());
    h.FinishEvent();
    h.CloseGradient(round);
    opened = h.OpenResult(round + 1, h.ResultMetadata(count, round), kChunks, low);
    if (!opened.ok()) return;
    window = transport::IncomingWindow::Opened(kChunks - low, low);
  }
  void Chunk(uint32_t round, uint32_t chunk, float value) {
    h.SendResultChunk(round + 1, chunk, Values(elements, value));
  }
  void Whole(uint32_t round, float value) {
    Push(round, 0);
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) Chunk(round, chunk, value);
  }
  // What the transport says of the window of round 1, and the moment for the close rule.
  void Progress(uint32_t low_received, bool high_complete, bool finished) {
    window.high_complete = high_complete;
    window.low_ratio = static_cast<double>(low_received) / window.low_count;
    window.sender_finished = finished;
    h.Happens(transport::event::WindowState{{2, 0}, window, h.connection.stats_now.smoothed_rtt});
  }
  Values ByChunk(const std::vector<float>& values) const {
    Values all;
    for (const float value : values) all.insert(all.end(), elements, value);
    return all;
  }

  SessionHarness h;
  const uint32_t elements = codec::ChunkElementsFor(SessionHarness::kSymbolBytes);
  const uint64_t count = uint64_t{kChunks} * elements;
  Values gradient = Values(count, 1.0f), model = Values(count, -1.0f);
  TensorHandle w = 0;
  Outcome step;
  Status opened;
  transport::IncomingWindow window;  // of the latest result
};

TEST_F(LossyResult, WhatDoesNotArriveStaysAsItWas) {
  Whole(0, 10);
  ASSERT_TRUE(step.status.ok() && step.done());
  std::ranges::fill(model, -1.0f);  // the caller's memory is the caller's
  Push(1, 3);
  ASSERT_TRUE(opened.ok()) << opened.ToString();
  for (const uint32_t chunk : {0u, 1u, 3u}) Chunk(1, chunk, 20);
  Progress(1, /*high_complete=*/true, /*finished=*/false);
  h.Advance(1000);
  EXPECT_FALSE(step.done()) << "the server has more to send: the round may not be over";
  Progress(1, true, true);
  EXPECT_FALSE(step.done()) << "repair or reordered chunks may still come";
  h.Advance(9);
  EXPECT_FALSE(step.done());
  h.Advance(1);  // a quarter of the round trip
  ASSERT_TRUE(step.done());
  EXPECT_TRUE(step.status.ok());
  EXPECT_EQ(model, ByChunk({20, 20, 10, 20, 10}));
  EXPECT_EQ(step.stats.lost_result_chunks, 2u);
  EXPECT_EQ(h.session.stats().result_chunks_lost, 2u);
  EXPECT_EQ(h.connection.closed_windows.back(), std::pair(transport::WindowKey{2}, wire::CloseReason::kSoft));
}

TEST_F(LossyResult, TheHighClassIsWaitedForAndAskedForOncePerRoundTrip) {
  Whole(0, 10);
  Push(1, 3);
  Chunk(1, 0, 20);
  Progress(3, /*high_complete=*/false, /*finished=*/true);
  h.Advance(39);
  EXPECT_TRUE(h.connection.requested_missing.empty())
      << "the server's own retransmissions may be on their way";
  h.Advance(1);
  EXPECT_EQ(h.connection.requested_missing.size(), 1u);
  Progress(3, false, true);
  EXPECT_EQ(h.connection.requested_missing.size(), 1u);
  h.Advance(40);
  EXPECT_EQ(h.connection.requested_missing.size(), 2u) << "the first one may be lost";
  h.Advance(5000);
  EXPECT_FALSE(step.done());
  Progress(3, true, true);
  EXPECT_TRUE(step.done());
}

TEST_F(LossyResult, AllInEndsAtOnce) {
  Whole(0, 10);
  Push(1, 3);
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) Chunk(1, chunk, 20);
  EXPECT_TRUE(step.done());
  EXPECT_EQ(model, Values(count, 20));
  EXPECT_EQ(h.connection.closed_windows.back(),
            std::pair(transport::WindowKey{2}, wire::CloseReason::kComplete));
  EXPECT_EQ(step.stats.lost_result_chunks, 0u);
}

TEST_F(LossyResult, HashesThatAgreeAreCounted) {
  for (uint32_t round = 0; round < 3; ++round) Whole(round, 10);
  h.SendRoundReport(2, 0, codec::StateHash(Values(count, 10)));
  EXPECT_EQ(h.session.state(), WorkerSession::State::kStarted);
  EXPECT_EQ(h.session.stats().state_hashes_agreed, 1u);
}

// The same rounds, but what arrived of one chunk in the last of them is not what the server has.
TEST_F(LossyResult, AReplicaThatDiffersEndsTheJobByName) {
  for (uint32_t round = 0; round < 2; ++round) Whole(round, 10);
  Push(2, 0);
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) Chunk(2, chunk, chunk == 3 ? 10.000001f : 10.0f);
  ASSERT_TRUE(step.done());
  h.SendRoundReport(2, 0, codec::StateHash(Values(count, 10)));
  EXPECT_EQ(h.session.state(), WorkerSession::State::kFailed);
  EXPECT_EQ(h.session.failure().code(), StatusCode::kDataLoss);
  EXPECT_THAT(h.session.failure().message(), HasSubstr("tensor w: after round 2"));
  EXPECT_EQ(h.session.stats().state_hash_mismatches, 1u);
  EXPECT_EQ(h.connection.closed->code(), StatusCode::kDataLoss) << "the server is told";
}

TEST_F(LossyResult, AMismatchThatTheResultBringsEndsThePushToo) {
  for (uint32_t round = 0; round < 2; ++round) Whole(round, 10);
  Push(2, 0);
  h.SendRoundReport(2, 0, codec::StateHash(Values(count, 11)));
  EXPECT_EQ(h.session.state(), WorkerSession::State::kStarted);
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) Chunk(2, chunk, 10);
  ASSERT_TRUE(step.done());
  EXPECT_EQ(step.status.code(), StatusCode::kDataLoss);
}

TEST_F(LossyResult, APartialResultWithoutTheOneBeforeIsTheServersProtocolError) {
  Push(0, 2);
  EXPECT_EQ(opened.code(), StatusCode::kProtocolViolation);
  EXPECT_EQ(h.session.failure().code(), StatusCode::kProtocolViolation);
}

TEST(ReliableResult, LowChunksAreTheServersProtocolError) {
  TensorHarness h(1000);
  Outcome step;
  h.PushPull(step);
  EXPECT_EQ(h.OpenResult(1, h.ResultMetadata(1000, 0), 3, 1).code(), StatusCode::kProtocolViolation);
  EXPECT_TRUE(step.done());
  EXPECT_EQ(step.status.code(), StatusCode::kProtocolViolation);
}

}  // namespace
}  // namespace longhaul::worker
