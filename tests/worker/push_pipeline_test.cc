#include "worker/push_pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/random.h"
#include "tests/worker/fake_connection.h"

namespace longhaul::worker {
namespace {

constexpr uint16_t kSymbolBytes = 1392;
const uint32_t kChunkElements = codec::ChunkElementsFor(kSymbolBytes);

TensorShape ShapeOf(uint64_t count) { return {.key = 3, .geometry = {count, kChunkElements}}; }

PushPipeline::Settings SettingsWith(double high_share) {
  PushPipeline::Settings settings;
  settings.high_share = high_share;
  settings.symbol_bytes = kSymbolBytes;
  settings.weight = 2.0f;
  return settings;
}

// A gradient whose chunk c has about the energy (c + 1)^2; chunks in `sparse` are mostly zeros.
std::vector<float> GradientOf(const codec::ChunkGeometry& geometry, const std::set<uint32_t>& sparse = {}) {
  std::vector<float> values(geometry.count, 0.0f);
  for (uint32_t c = 0; c < geometry.chunks(); ++c) {
    const std::span<float> chunk = geometry.Elements(std::span(values), c);
    const size_t step = sparse.contains(c) ? 50 : 1;
    const float size = static_cast<float>(c + 1) / std::sqrt(static_cast<float>(chunk.size() / step + 1));
    for (size_t i = 0; i < chunk.size(); i += step) chunk[i] = size;
  }
  return values;
}

// Begins a round's window on the fake connection and returns it.
FakeConnection::Window& Push(PushPipeline& pipeline, FakeConnection& connection, uint32_t id, uint64_t round,
                             std::span<const float> gradient) {
  transport::WindowOptions options = pipeline.Begin(round, gradient, /*wants_result=*/true);
  options.key = {id, 0};
  EXPECT_TRUE(connection.OpenWindow(options).ok());
  EXPECT_TRUE(pipeline.Submit(connection, options.key).ok());
  return connection.windows.at(options.key);
}

void Close(PushPipeline& pipeline, const FakeConnection::Window& window, bool high_complete,
           const std::set<uint32_t>& lost) {
  transport::WindowReceipt receipt;
  receipt.high_complete = high_complete;
  if (!high_complete) receipt.high = transport::ChunkBitmap(window.options.high_count);
  receipt.low = transport::ChunkBitmap(window.options.low_count);
  for (uint32_t i = 0; i < window.options.low_count; ++i) {
    if (!lost.contains(i)) receipt.low.Set(i);
  }
  pipeline.OnClosed(receipt, {});
}

// A1: chunks carry class, position, element type and sparsity; zeros do not travel.
TEST(PushPipelineTest, PacketisesAGradientWithPriorityAndSparsity) {
  const TensorShape shape = ShapeOf(40 * kChunkElements + 7);
  PushPipeline pipeline(shape, SettingsWith(0.25));
  FakeConnection connection;
  const std::vector<float> gradient = GradientOf(shape.geometry, {39, 38, 5});
  const FakeConnection::Window& window = Push(pipeline, connection, 1, 12, gradient);

  const Result<codec::WindowMetadata> metadata = codec::DecodeWindowMetadata(window.options.metadata);
  ASSERT_TRUE(metadata.ok()) << metadata.status().ToString();
  EXPECT_EQ(metadata->kind, codec::WindowKind::kGradient);
  EXPECT_EQ(metadata->key, 3u);
  EXPECT_EQ(metadata->round, 12u);
  EXPECT_EQ(metadata->count, gradient.size());
  EXPECT_EQ(metadata->chunk_elements, kChunkElements);
  EXPECT_EQ(metadata->weight, 2.0f);
  EXPECT_TRUE(metadata->wants_result);
  EXPECT_GT(metadata->total_low_energy, 0.0f);
  // Two of the eleven high chunks (41 * 0.25) are zeros by 98 %.
  EXPECT_NEAR(metadata->high_sparsity, 2 * 0.98 / static_cast<double>(window.high.size()), 0.02);

  // Every chunk is sent once, in one of the classes, and tells what it is.
  ASSERT_EQ(window.high.size() + window.low.size(), shape.geometry.chunks());
  EXPECT_NEAR(static_cast<double>(window.high.size()), 0.25 * 41, 1.0);
  std::vector<float> rebuilt(gradient.size(), -1.0f);
  double least_high = 1e30, most_low = 0;
  for (const auto* chunks : {&window.high, &window.low}) {
    for (const FakeConnection::Chunk& c : *chunks) {
      const std::vector<uint8_t> bytes = c.Bytes();
      const auto chunk = codec::ParseChunk(bytes);
      ASSERT_TRUE(chunk.ok()) << chunk.status().ToString();
      const std::span<float> place = shape.geometry.Elements(std::span(rebuilt), chunk->index);
      EXPECT_EQ(place[0], -1.0f) << "chunk " << chunk->index << " twice";
      codec::DecodeChunk(*chunk, place);
      const double energy = codec::ChunkEnergy(place);
      if (chunks == &window.high) least_high = std::min(least_high, energy);
      if (chunks == &window.low) most_low = std::max(most_low, energy);
      const bool sparse = chunk->index == 39 || chunk->index == 38 || chunk->index == 5;
      EXPECT_EQ(chunk->encoding, sparse ? codec::ChunkEncoding::kBitmapSparse : codec::ChunkEncoding::kDense);
      if (sparse) {
        EXPECT_LT(bytes.size(), 150u) << "a chunk of " << chunk->count << " elements, mostly zeros";
      }
      EXPECT_EQ(chunk->nonzero, codec::CountNonzero(place));
      EXPECT_EQ(chunk->log_energy, codec::QuantizeEnergy(energy));
      EXPECT_EQ(chunk->dtype, DType::kFloat32);
    }
  }
  EXPECT_EQ(rebuilt, gradient);
  EXPECT_GE(least_high, most_low) << "the high class has the energy";
}

// A2: the class decides about FEC; the window says how its high chunks are coded, low chunks have no repair.
TEST(PushPipelineTest, HighPriorityChunksAreFecEncodedLowAreNot) {
  const TensorShape shape = ShapeOf(200 * kChunkElements);
  PushPipeline pipeline(shape, SettingsWith(0.2));
  FakeConnection connection;
  const std::vector<float> gradient = GradientOf(shape.geometry);
  const FakeConnection::Window& window = Push(pipeline, connection, 1, 0, gradient);
  EXPECT_EQ(window.options.fec_k, 20);
  EXPECT_EQ(window.options.fec_depth, 0) << "by the bursts that the connection sees";
  EXPECT_EQ(window.options.high_count, 40u);
  EXPECT_EQ(window.options.low_count, 160u);
  for (const FakeConnection::Chunk& c : window.high) EXPECT_EQ(c.reliability, wire::ReliabilityClass::kHigh);
  for (const FakeConnection::Chunk& c : window.low) EXPECT_EQ(c.reliability, wire::ReliabilityClass::kLow);
}

TEST(PushPipelineTest, BlocksAreNotLargerThanTheHighClass) {
  struct Case {
    uint32_t chunks;
    double share;
    uint8_t job_k;
    uint8_t k;
  };
  for (const Case& c : {Case{200, 0.2, 24, 24}, Case{200, 0.2, 20, 20}, Case{70, 0.2, 20, 12},
                        Case{10, 0.2, 20, 8}, Case{200, 0.2, 0, 0}}) {
    const TensorShape shape = ShapeOf(uint64_t{c.chunks} * kChunkElements);
    PushPipeline::Settings settings = SettingsWith(c.share);
    settings.fec_k = c.job_k;
    PushPipeline pipeline(shape, settings);
    const std::vector<float> gradient = GradientOf(shape.geometry);
    EXPECT_EQ(pipeline.Begin(0, gradient, false).fec_k, c.k) << c.chunks << " chunks, job k " << int{c.job_k};
    pipeline.Abandon();
  }
}

TEST(PushPipelineTest, ASmallTensorIsAllHigh) {
  const TensorShape shape = ShapeOf(4 * kChunkElements);
  PushPipeline pipeline(shape, SettingsWith(0.2));
  const std::vector<float> gradient = GradientOf(shape.geometry);
  const transport::WindowOptions options = pipeline.Begin(0, gradient, false);
  EXPECT_EQ(options.high_count, 4u);
  EXPECT_EQ(options.low_count, 0u);
}

// Conservation: what was delivered plus what is kept is what was produced, whatever is lost when.
TEST(PushPipelineTest, NothingOfAGradientIsLostOnlyDelayed) {
  const uint64_t seed = 21;
  Random random(seed);
  const TensorShape shape = ShapeOf(60 * kChunkElements + 100);
  PushPipeline pipeline(shape, SettingsWith(0.2));
  FakeConnection connection;
  // Small integers: float sums are exact.
  std::vector<float> produced(shape.geometry.count, 0.0f), applied(shape.geometry.count, 0.0f);
  for (uint32_t round = 0; round < 30; ++round) {
    std::vector<float> gradient(shape.geometry.count);
    for (float& g : gradient) g = static_cast<float>(random.Below(9)) - 4.0f;
    for (size_t i = 0; i < gradient.size(); ++i) produced[i] += gradient[i];
    const FakeConnection::Window& window = Push(pipeline, connection, round + 1, round, gradient);
    const bool high_complete = !random.Chance(0.1);
    std::set<uint32_t> lost;
    for (uint32_t i = 0; i < window.low.size(); ++i) {
      if (random.Chance(0.3)) lost.insert(i);
    }
    const auto apply = [&](const FakeConnection::Chunk& c) {
      const std::vector<uint8_t> bytes = c.Bytes();
      const auto chunk = codec::ParseChunk(bytes);
      ASSERT_TRUE(chunk.ok());
      std::vector<float> values(chunk->count);
      codec::DecodeChunk(*chunk, values);
      const std::span<float> place = shape.geometry.Elements(std::span(applied), chunk->index);
      for (size_t i = 0; i < values.size(); ++i) place[i] += values[i];
    };
    if (high_complete) std::for_each(window.high.begin(), window.high.end(), apply);
    for (uint32_t i = 0; i < window.low.size(); ++i) {
      if (!lost.contains(i)) apply(window.low[i]);
    }
    Close(pipeline, window, high_complete, lost);
    for (size_t i = 0; i < produced.size(); ++i) {
      ASSERT_EQ(applied[i] + pipeline.residual()[i], produced[i])
          << "element " << i << ", round " << round << ", seed " << seed;
    }
  }
}

TEST(PushPipelineTest, AnAbandonedWindowStaysInTheResidual) {
  const TensorShape shape = ShapeOf(10 * kChunkElements);
  PushPipeline pipeline(shape, SettingsWith(0.2));
  const std::vector<float> gradient = GradientOf(shape.geometry);
  pipeline.Begin(0, gradient, false);
  pipeline.Abandon();
  EXPECT_TRUE(std::equal(gradient.begin(), gradient.end(), pipeline.residual().begin()));
  pipeline.Abandon();  // harmless
  EXPECT_TRUE(std::equal(gradient.begin(), gradient.end(), pipeline.residual().begin()));
}

TEST(PushPipelineTest, InitialValuesTravelAllHighAndLeaveTheResidualAlone) {
  const TensorShape shape = ShapeOf(50 * kChunkElements);
  PushPipeline pipeline(shape, SettingsWith(0.2));
  FakeConnection connection;
  const std::vector<float> values(shape.geometry.count, 3.0f);
  transport::WindowOptions options = pipeline.BeginInitial(values);
  options.key = {1, 0};
  ASSERT_TRUE(connection.OpenWindow(options).ok());
  ASSERT_TRUE(pipeline.Submit(connection, options.key).ok());
  EXPECT_EQ(options.high_count, 50u);
  EXPECT_EQ(options.low_count, 0u);
  Close(pipeline, connection.windows.at({1, 0}), true, {});
  for (float r : pipeline.residual()) ASSERT_EQ(r, 0.0f);
}

TEST(PushPipelineTest, LowChunksDoNotLeaveInTheSameOrderEveryRound) {
  const TensorShape shape = ShapeOf(100 * kChunkElements);
  PushPipeline pipeline(shape, SettingsWith(0.2));
  FakeConnection connection;
  const std::vector<float> gradient = GradientOf(shape.geometry);
  std::set<uint32_t> last;
  for (uint32_t round = 0; round < 8; ++round) {
    const FakeConnection::Window& window = Push(pipeline, connection, round + 1, round, gradient);
    const std::vector<uint8_t> bytes = window.low.back().Bytes();
    last.insert(codec::ParseChunk(bytes)->index);
    Close(pipeline, window, true, {});
  }
  EXPECT_GT(last.size(), 3u) << "else it is always the same part of the tensor that a full queue cuts off";
}

}  // namespace
}  // namespace longhaul::worker
