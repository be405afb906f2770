#include "worker/client/push_pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "base/random.h"
#include "codec/chunk/quantize.h"
#include "codec/policy/summable.h"
#include "tests/transport/fake_connection.h"

namespace longhaul::worker {
namespace {

using transport::FakeConnection;

constexpr uint16_t kSymbolBytes = 1392;
const uint32_t kChunkElements = codec::ChunkElementsFor(kSymbolBytes);

TensorShape ShapeOf(uint64_t count) { return {.key = 3, .geometry = {count, kChunkElements}}; }

PushPipeline::Settings SettingsWith(double high_share, LossPolicy policy = LossPolicy::kResidual) {
  PushPipeline::Settings settings;
  settings.policy = policy;
  settings.high_share = high_share;
  settings.symbol_bytes = kSymbolBytes;
  settings.weight = 2.0f;
  return settings;
}

// With the connection that its windows go to.
struct Pipeline : PushPipeline {
  using PushPipeline::PushPipeline;
  FakeConnection connection;
};

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

// Surveys it all at once.
Result<transport::WindowOptions> Survey(PushPipeline& pipeline, uint64_t round,
                                        std::span<const float> gradient, bool wants_result = false,
                                        uint32_t epoch = 0) {
  WorkBudget everything = WorkBudget::Everything();
  pipeline.Begin(round, gradient, wants_result, epoch);
  EXPECT_TRUE(pipeline.Survey(everything));
  if (!pipeline.refusal().ok()) return pipeline.refusal();
  return pipeline.window();
}

FakeConnection::Window& Submit(Pipeline& pipeline, uint32_t id) {
  WorkBudget everything = WorkBudget::Everything();
  transport::WindowOptions options = pipeline.window();
  options.key = {id, 0};
  EXPECT_TRUE(pipeline.connection.OpenWindow(options).ok());
  EXPECT_TRUE(pipeline.Submit(pipeline.connection, options.key, everything).ok());
  EXPECT_TRUE(pipeline.submitted());
  return pipeline.connection.outgoing.at(options.key);
}

void Close(PushPipeline& pipeline, const transport::WindowReceipt& receipt) {
  WorkBudget everything = WorkBudget::Everything();
  pipeline.OnClosed(receipt, {});
  EXPECT_TRUE(pipeline.Settle(everything));
}

// Begins a round's window on the fake connection and returns it.
FakeConnection::Window& Push(Pipeline& pipeline, uint64_t round, std::span<const float> gradient) {
  const Result<transport::WindowOptions> encoded = Survey(pipeline, round, gradient, /*wants_result=*/true);
  EXPECT_TRUE(encoded.ok()) << encoded.status().ToString();
  return Submit(pipeline, static_cast<uint32_t>(round) + 1);
}

// What the server says it took: all of the high class or, if not complete, none; low chunks but those lost.
transport::WindowReceipt Receipt(const FakeConnection::Window& window, bool high_complete,
                                 const std::set<uint32_t>& lost) {
  transport::WindowReceipt receipt;
  receipt.high_complete = high_complete;
  if (!high_complete) receipt.high = transport::ChunkBitmap(window.options.high_count);
  receipt.low = transport::ChunkBitmap(window.options.low_count);
  for (uint32_t i = 0; i < window.options.low_count; ++i) {
    if (!lost.contains(i)) receipt.low.Set(i);
  }
  return receipt;
}

void Close(PushPipeline& pipeline, const FakeConnection::Window& window, bool high_complete,
           const std::set<uint32_t>& lost) {
  Close(pipeline, Receipt(window, high_complete, lost));
}

// Adds up what the server takes of a window, decoded as it does.
void Apply(const FakeConnection::Window& window, const transport::WindowReceipt& receipt,
           const codec::ChunkGeometry& geometry, std::span<float> sum) {
  const auto add = [&](const FakeConnection::Chunk& c) {
    const std::vector<uint8_t> bytes = c.Bytes();
    const auto chunk = codec::ParseChunk(bytes);
    ASSERT_TRUE(chunk.ok()) << chunk.status().ToString();
    ASSERT_LE(bytes.size(), kSymbolBytes);
    ASSERT_EQ(chunk->count, geometry.Length(chunk->index));
    codec::DecodeAdd(*chunk, 1.0f, /*first=*/false, geometry.Elements(sum, chunk->index));
  };
  for (uint32_t i = 0; i < window.high.size(); ++i) {
    if (receipt.HighTaken(i)) add(window.high[i]);
  }
  for (uint32_t i = 0; i < window.low.size(); ++i) {
    if (receipt.LowTaken(i)) add(window.low[i]);
  }
}

std::vector<uint32_t> IndicesOf(const std::vector<FakeConnection::Chunk>& chunks) {
  std::vector<uint32_t> indices;
  for (const auto& chunk : chunks) indices.push_back(codec::ParseChunk(chunk.Bytes())->index);
  return indices;
}

// Loses some of both classes.
transport::WindowReceipt RandomReceipt(const FakeConnection::Window& window, Random& random, double loss) {
  std::set<uint32_t> lost;
  for (uint32_t i = 0; i < window.low.size(); ++i) {
    if (random.Chance(loss)) lost.insert(i);
  }
  transport::WindowReceipt receipt = Receipt(window, !random.Chance(loss), lost);
  for (uint32_t i = 0; i < receipt.high.size(); ++i) {
    if (!random.Chance(loss)) receipt.high.Set(i);
  }
  return receipt;
}

// Pushes a gradient, of which some is lost, and adds up what the server takes.
void PushWithLoss(Pipeline& pipeline, uint64_t round, std::span<const float> gradient, Random& random,
                  const codec::ChunkGeometry& geometry, std::span<float> sum) {
  const FakeConnection::Window& window = Push(pipeline, round, gradient);
  const transport::WindowReceipt receipt = RandomReceipt(window, random, 0.3);
  Apply(window, receipt, geometry, sum);
  Close(pipeline, receipt);
}

// Alike chunks, so that a share of the energy is as large a share of them.
TEST(PushPipelineTest, AWorkerThatLosesMuchSendsMoreReliablyAndNoLongerThanItDoes) {
  PushPipeline::Settings settings = SettingsWith(0.2, LossPolicy::kZero);
  settings.lost_energy = 0.15;
  constexpr uint32_t kChunks = 100;
  Pipeline pipeline(ShapeOf(uint64_t{kChunks} * kChunkElements), settings);
  const std::vector<float> gradient(uint64_t{kChunks} * kChunkElements, 1.0f);
  uint64_t round = 0;
  // High chunks of the last of so many windows which lose every so-manieth low chunk.
  const auto high_after = [&](int windows, uint32_t every, bool high_complete = true) {
    uint32_t high = 0;
    for (int i = 0; i < windows; ++i) {
      FakeConnection::Window window;
      window.options = *Survey(pipeline, round++, gradient);
      high = window.options.high_count;
      std::set<uint32_t> lost;
      for (uint32_t c = 0; every > 0 && c < window.options.low_count; c += every) lost.insert(c);
      Close(pipeline, window, high_complete, lost);
    }
    return high;
  };
  EXPECT_EQ(high_after(3, 0), 20u) << "the share";
  EXPECT_EQ(high_after(3, 10), 20u) << "a tenth may be lost";
  EXPECT_EQ(high_after(10, 1, /*high_complete=*/false), 20u) << "windows that were given up do not count";
  EXPECT_NEAR(high_after(60, 2), 70, 3) << "0.3 x 1/2 is 0.15";
  EXPECT_EQ(high_after(60, 0), 20u) << "the path is a better one";
}

// A1: chunks carry class, position, element type and sparsity; zeros do not travel.
TEST(PushPipelineTest, PacketisesAGradientWithPriorityAndSparsity) {
  const TensorShape shape = ShapeOf(40 * kChunkElements + 7);
  Pipeline pipeline(shape, SettingsWith(0.25));
  const std::vector<float> gradient = GradientOf(shape.geometry, {39, 38, 5});
  const FakeConnection::Window& window = Push(pipeline, 12, gradient);

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

  // Every chunk is sent once, in one of the classes, and tells what it is.
  ASSERT_EQ(window.high.size() + window.low.size(), shape.geometry.chunks());
  EXPECT_NEAR(static_cast<double>(window.high.size()), 0.25 * 41, 1.0);
  std::vector<float> rebuilt(gradient.size(), -1.0f);
  double least_high = 1e30, most_low = 0;
  for (const FakeConnection::Chunk& c : window.chunks) {
    const std::vector<uint8_t> bytes = c.Bytes();
    const auto chunk = codec::ParseChunk(bytes);
    ASSERT_TRUE(chunk.ok()) << chunk.status().ToString();
    const std::span<float> place = shape.geometry.Elements(std::span(rebuilt), chunk->index);
    EXPECT_EQ(place[0], -1.0f) << "chunk " << chunk->index << " twice";
    codec::DecodeChunk(*chunk, place);
    const double energy = codec::ChunkEnergy(place);
    const bool high = c.reliability == wire::ReliabilityClass::kHigh;
    if (high) least_high = std::min(least_high, energy);
    if (!high) most_low = std::max(most_low, energy);
    const bool sparse = chunk->index == 39 || chunk->index == 38 || chunk->index == 5;
    EXPECT_EQ(chunk->encoding, sparse ? codec::ChunkEncoding::kGapSparse : codec::ChunkEncoding::kDense);
    if (sparse) {
      EXPECT_LT(bytes.size(), 150u) << "a chunk of " << chunk->count << " elements, mostly zeros";
    }
    EXPECT_EQ(chunk->nonzero, codec::CountNonzero(place));
    EXPECT_EQ(chunk->log_energy, codec::QuantizeEnergy(energy));
    EXPECT_EQ(chunk->dtype, DType::kFloat32);
  }
  EXPECT_EQ(rebuilt, gradient);
  EXPECT_GE(least_high, most_low) << "the high class has the energy";
}

// Bodies are borrowed until the window is over: a chunk that becomes sparse at the end of a block moves none.
TEST(PushPipelineTest, SparseBodiesStayWhereTheyAre) {
  const TensorShape shape = ShapeOf(uint64_t{20'000} * kChunkElements);
  Pipeline pipeline(shape, SettingsWith(0.25));
  std::vector<float> gradient(shape.geometry.count);
  for (uint32_t c = 0; c < shape.geometry.chunks(); ++c)
    gradient[shape.geometry.First(c)] = static_cast<float>(c + 1);
  const FakeConnection::Window& window = Push(pipeline, 0, gradient);
  std::vector<bool> seen(shape.geometry.chunks());
  for (const FakeConnection::Chunk& c : window.chunks) {
    const std::vector<uint8_t> bytes = c.Bytes();
    const auto chunk = codec::ParseChunk(bytes);
    ASSERT_TRUE(chunk.ok()) << chunk.status().ToString();
    ASSERT_EQ(chunk->encoding, codec::ChunkEncoding::kGapSparse);
    std::vector<float> values(chunk->count);
    codec::DecodeChunk(*chunk, values);
    ASSERT_EQ(values[0], static_cast<float>(chunk->index + 1));
    ASSERT_EQ(codec::CountNonzero(values), 1u);
    seen.at(chunk->index) = true;
  }
  EXPECT_EQ(std::ranges::count(seen, true), shape.geometry.chunks());
}

// A2: the class decides about FEC; the window says how its high chunks are coded, low chunks have no repair.
TEST(PushPipelineTest, HighPriorityChunksAreFecEncodedLowAreNot) {
  const TensorShape shape = ShapeOf(200 * kChunkElements);
  Pipeline pipeline(shape, SettingsWith(0.2));
  const std::vector<float> gradient = GradientOf(shape.geometry);
  const FakeConnection::Window& window = Push(pipeline, 0, gradient);
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
    Pipeline pipeline(shape, settings);
    const std::vector<float> gradient = GradientOf(shape.geometry);
    EXPECT_EQ(Survey(pipeline, 0, gradient)->fec_k, c.k) << c.chunks << " chunks, job k " << int{c.job_k};
    pipeline.Abandon();
  }
}

TEST(PushPipelineTest, ASmallTensorIsAllHigh) {
  const TensorShape shape = ShapeOf(4 * kChunkElements);
  Pipeline pipeline(shape, SettingsWith(0.2));
  const std::vector<float> gradient = GradientOf(shape.geometry);
  const transport::WindowOptions options = *Survey(pipeline, 0, gradient);
  EXPECT_EQ(options.high_count, 4u);
  EXPECT_EQ(options.low_count, 0u);
}

// Conservation: what was delivered plus what is kept is what was produced, whatever is lost when.
TEST(PushPipelineTest, NothingOfAGradientIsLostOnlyDelayed) {
  const uint64_t seed = 21;
  Random random(seed);
  const TensorShape shape = ShapeOf(60 * kChunkElements + 100);
  Pipeline pipeline(shape, SettingsWith(0.2));
  // Small integers: float sums are exact.
  std::vector<float> produced(shape.geometry.count, 0.0f), applied(shape.geometry.count, 0.0f);
  for (uint32_t round = 0; round < 30; ++round) {
    std::vector<float> gradient(shape.geometry.count);
    for (float& g : gradient) g = static_cast<float>(random.Below(9)) - 4.0f;
    for (size_t i = 0; i < gradient.size(); ++i) produced[i] += gradient[i];
    PushWithLoss(pipeline, round, gradient, random, shape.geometry, applied);
    for (size_t i = 0; i < produced.size(); ++i) {
      ASSERT_EQ(applied[i] + pipeline.residual()[i], produced[i])
          << "element " << i << ", round " << round << ", seed " << seed;
    }
  }
}

TEST(PushPipelineTest, AnAbandonedWindowStaysInTheResidual) {
  const TensorShape shape = ShapeOf(10 * kChunkElements);
  Pipeline pipeline(shape, SettingsWith(0.2));
  const std::vector<float> gradient = GradientOf(shape.geometry);
  ASSERT_TRUE(Survey(pipeline, 0, gradient).ok());
  pipeline.Abandon();
  EXPECT_TRUE(std::equal(gradient.begin(), gradient.end(), pipeline.residual().begin()));
  pipeline.Abandon();  // harmless
  EXPECT_TRUE(std::equal(gradient.begin(), gradient.end(), pipeline.residual().begin()));
}

TEST(PushPipelineTest, InitialValuesTravelAllHighAndLeaveTheResidualAlone) {
  const TensorShape shape = ShapeOf(50 * kChunkElements);
  Pipeline pipeline(shape, SettingsWith(0.2));
  const std::vector<float> values(shape.geometry.count, 3.0f);
  WorkBudget everything = WorkBudget::Everything();
  pipeline.BeginInitial(values);
  ASSERT_TRUE(pipeline.Survey(everything));
  Submit(pipeline, 1);
  const transport::WindowOptions options = pipeline.window();
  EXPECT_EQ(options.high_count, 50u);
  EXPECT_EQ(options.low_count, 0u);
  Close(pipeline, pipeline.connection.outgoing.at({1, 0}), true, {});
  for (float r : pipeline.residual()) ASSERT_EQ(r, 0.0f);
}

TEST(PushPipelineTest, LowChunksDoNotLeaveInTheSameOrderEveryRound) {
  const TensorShape shape = ShapeOf(100 * kChunkElements);
  Pipeline pipeline(shape, SettingsWith(0.2));
  const std::vector<float> gradient = GradientOf(shape.geometry);
  std::set<uint32_t> last;
  for (uint32_t round = 0; round < 8; ++round) {
    const FakeConnection::Window& window = Push(pipeline, round, gradient);
    last.insert(IndicesOf(window.low).back());
    Close(pipeline, window, true, {});
  }
  EXPECT_GT(last.size(), 3u) << "else it is always the same part of the tensor that a full queue cuts off";
}

// --- Shorter types, and sparse on purpose ---

TensorShape ShapeOf(uint64_t count, const codec::WireFormat& format) {
  TensorShape shape = ShapeOf(count);
  shape.format = format;
  return shape;
}

const codec::WireFormat kFormats[] = {{DType::kFloat32},
                                      {DType::kBFloat16},
                                      {DType::kFloat16},
                                      {DType::kInt8},
                                      {DType::kInt4},
                                      {DType::kInt2},
                                      {.gradient = DType::kFloat32, .topk_share = 0.1},
                                      {.gradient = DType::kBFloat16, .topk_share = 0.1},
                                      {.gradient = DType::kInt8, .topk_share = 0.05},
                                      {.gradient = DType::kInt2, .topk_share = 1.0 / 64}};

PushPipeline::Settings SettingsFor(const codec::WireFormat& format, LossPolicy policy) {
  PushPipeline::Settings settings = SettingsWith(0.2, policy);
  if (format.topk_share > 0) settings.priority = Priority::kTopK;
  return settings;
}

std::string NameOf(const codec::WireFormat& format) {
  return std::string(DTypeName(format.gradient)) + (format.topk_share > 0 ? " topk" : "");
}

std::vector<float> RandomGradient(Random& random, uint64_t count) {
  std::vector<float> gradient(count);
  for (float& g : gradient) g = static_cast<float>(random.Normal() * std::exp(random.Normal()));
  return gradient;
}

TEST(PushPipelineTest, AWindowSaysHowItsChunksAreCut) {
  for (const codec::WireFormat& format : kFormats) {
    const TensorShape shape = ShapeOf(100 * kChunkElements + 9, format);
    PushPipeline::Settings settings = SettingsFor(format, LossPolicy::kResidual);
    settings.window_priority = -3;
    Pipeline pipeline(shape, settings);
    Random random(1);
    const std::vector<float> gradient = RandomGradient(random, shape.geometry.count);
    const auto options = Survey(pipeline, 4, gradient, true, /*epoch=*/7);
    ASSERT_TRUE(options.ok());
    const auto metadata = codec::DecodeWindowMetadata(options->metadata);
    ASSERT_TRUE(metadata.ok());
    EXPECT_EQ(metadata->dtype, format.gradient);
    EXPECT_EQ(metadata->chunk_elements, shape.gradient().chunk_elements) << NameOf(format);
    EXPECT_EQ(options->high_count + options->low_count, shape.gradient().chunks());
    EXPECT_EQ(metadata->shift_epoch, 7u);
    EXPECT_EQ(options->priority, -3);
    pipeline.Abandon();
    // Initial values are what they are.
    WorkBudget everything = WorkBudget::Everything();
    pipeline.BeginInitial(gradient);
    ASSERT_TRUE(pipeline.Survey(everything));
    const transport::WindowOptions initial = pipeline.window();
    const auto of_initial = codec::DecodeWindowMetadata(initial.metadata);
    EXPECT_EQ(of_initial->dtype, DType::kFloat32);
    EXPECT_EQ(of_initial->chunk_elements, kChunkElements);
    EXPECT_EQ(initial.high_count, shape.geometry.chunks());
    pipeline.Abandon();
  }
}

// Each element: what the server has got plus what is owed is what was produced. Rounding errors are owed,
// too.
TEST(PushPipelineTest, WhatRoundingAndSelectionLeaveOutIsOwed) {
  const uint64_t seed = 22;
  for (const codec::WireFormat& format : kFormats) {
    Random random(seed);
    const TensorShape shape = ShapeOf(30 * kChunkElements + 100, format);
    const codec::ChunkGeometry geometry = shape.gradient();
    Pipeline pipeline(shape, SettingsFor(format, LossPolicy::kResidual));
    for (uint32_t round = 0; round < 8; ++round) {
      const std::vector<float> gradient = RandomGradient(random, geometry.count);
      std::vector<float> before(geometry.count);
      for (size_t i = 0; i < before.size(); ++i) before[i] = pipeline.residual()[i] + gradient[i];
      std::vector<float> sent(geometry.count, 0.0f);
      PushWithLoss(pipeline, round, gradient, random, geometry, sent);
      for (size_t i = 0; i < before.size(); ++i) {
        // One subtraction, so to the bit; and nothing that was not sent is touched.
        ASSERT_EQ(pipeline.residual()[i], before[i] - sent[i])
            << NameOf(format) << " element " << i << ", round " << round << ", seed " << seed;
      }
    }
  }
}

TEST(PushPipelineTest, NothingIsEverLostWithAnyTypeWhenTheNumbersAreRepresentable) {
  // Multiples of 1/8 below 2^13: every sum and difference with a rounded value is exact in float32.
  const uint64_t seed = 23;
  for (const codec::WireFormat& format : kFormats) {
    if (codec::HasScale(format.gradient)) continue;  // it is no such number
    Random random(seed);
    const TensorShape shape = ShapeOf(20 * kChunkElements + 3, format);
    Pipeline pipeline(shape, SettingsFor(format, LossPolicy::kResidual));
    std::vector<float> produced(shape.geometry.count, 0.0f), applied(shape.geometry.count, 0.0f);
    for (uint32_t round = 0; round < 20; ++round) {
      std::vector<float> gradient(shape.geometry.count);
      for (float& g : gradient) g = (static_cast<float>(random.Below(4001)) - 2000.0f) / 8;
      for (size_t i = 0; i < gradient.size(); ++i) produced[i] += gradient[i];
      PushWithLoss(pipeline, round, gradient, random, shape.gradient(), applied);
      for (size_t i = 0; i < produced.size(); ++i) {
        ASSERT_EQ(applied[i] + pipeline.residual()[i], produced[i])
            << NameOf(format) << " element " << i << ", round " << round << ", seed " << seed;
      }
    }
  }
}

// The server's sum of what it takes, times alpha, is the worker's shift: to the bit, whatever was rounded.
TEST(PushPipelineTest, TheShiftMovesByWhatArrived) {
  const uint64_t seed = 24;
  for (const codec::WireFormat& format : kFormats) {
    Random random(seed);
    const TensorShape shape = ShapeOf(20 * kChunkElements + 5, format);
    PushPipeline::Settings settings = SettingsFor(format, LossPolicy::kShift);
    settings.shift_alpha = 0.125;
    Pipeline pipeline(shape, settings);
    std::vector<float> expected(shape.geometry.count, 0.0f);
    for (uint32_t round = 0; round < 10; ++round) {
      const std::vector<float> gradient = RandomGradient(random, shape.geometry.count);
      std::vector<float> sent(shape.geometry.count, 0.0f);
      PushWithLoss(pipeline, round, gradient, random, shape.gradient(), sent);
      for (size_t i = 0; i < sent.size(); ++i) {
        expected[i] += 0.125f * sent[i];
        ASSERT_EQ(pipeline.shift()[i], expected[i])
            << NameOf(format) << " element " << i << ", round " << round;
      }
    }
    // A new epoch forgets it, before the gradient is prepared; also one whose first window was given up.
    const std::vector<float> gradient(shape.geometry.count, 1.0f);
    ASSERT_TRUE(Survey(pipeline, 10, gradient, false, /*epoch=*/1).ok());
    pipeline.Abandon();
    ASSERT_TRUE(Survey(pipeline, 11, gradient, false, /*epoch=*/1).ok());
    Submit(pipeline, 12);
    pipeline.Abandon();
    for (float c : pipeline.shift()) ASSERT_EQ(c, 0.0f);
  }
}

// Policies that forget must not be biased by rounding: the mean over rounds is the gradient.
TEST(PushPipelineTest, WhatArrivesIsUnbiasedWithEveryType) {
  constexpr int kRounds = 400;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kInt8, DType::kInt4, DType::kInt2}) {
    const TensorShape shape = ShapeOf(3 * kChunkElements, {dtype});
    Pipeline pipeline(shape, SettingsFor({dtype}, LossPolicy::kZero));
    Random random(25);
    const std::vector<float> gradient = RandomGradient(random, shape.geometry.count);
    std::vector<double> mean(gradient.size(), 0.0), square(gradient.size(), 0.0);
    for (uint32_t round = 0; round < kRounds; ++round) {
      const FakeConnection::Window& window = Push(pipeline, round, gradient);
      std::vector<float> sent(gradient.size(), 0.0f);
      const transport::WindowReceipt receipt = Receipt(window, true, {});
      Apply(window, receipt, shape.gradient(), sent);
      Close(pipeline, receipt);
      pipeline.connection.outgoing.clear();
      for (size_t i = 0; i < sent.size(); ++i) {
        const double error = static_cast<double>(sent[i]) - static_cast<double>(gradient[i]);
        mean[i] += error / kRounds;
        square[i] += error * error / kRounds;
      }
    }
    const float scale = codec::Bfloat16ToFloat(
        codec::ScaleOf(dtype, gradient, codec::Rounding::Stochastic(1)));  // one chunk: 1035 elements
    const auto step = [&](float g) {
      if (codec::HasScale(dtype)) return dtype == DType::kInt2 ? codec::kInt2Large * scale : scale;
      return dtype == DType::kBFloat16 ? std::abs(g) * 0x1p-7f : std::max(std::abs(g) * 0x1p-10f, 0x1p-24f);
    };
    double worst = 0, of_all = 0, spread = 0;
    for (size_t i = 0; i < mean.size(); ++i) {
      const double coin = 0.5 * static_cast<double>(step(gradient[i])) / std::sqrt(kRounds);
      worst = std::max(worst, std::abs(mean[i]) / coin);
      of_all += mean[i];
      spread += square[i] / kRounds;
    }
    EXPECT_GT(spread, 0.0) << DTypeName(dtype) << " was rounded";
    EXPECT_LT(worst, 5.5) << DTypeName(dtype) << ": standard errors of a coin, the largest of 1035 elements";
    EXPECT_LT(std::abs(of_all), 4 * std::sqrt(spread)) << DTypeName(dtype);
  }
}

TEST(PushPipelineTest, TopKSendsItsShareAndNeverMoreThanASymbolHolds) {
  const codec::WireFormat format{.gradient = DType::kFloat32, .topk_share = 0.1};
  const TensorShape shape = ShapeOf(100 * kChunkElements, format);
  const uint32_t whole = 6 * kChunkElements;
  ASSERT_EQ(shape.gradient().chunk_elements, whole);
  const uint32_t capacity = codec::SparseCapacity(kSymbolBytes, whole, DType::kFloat32);
  Pipeline pipeline(shape, SettingsFor(format, LossPolicy::kResidual));
  Random random(26);
  std::vector<float> gradient(shape.geometry.count);
  // The first chunk has larger values than all others: more of them are wanted than it can carry.
  for (size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = static_cast<float>(random.Normal()) * (i < whole ? 100.0f : 1.0f);
  }
  const FakeConnection::Window& window = Push(pipeline, 0, gradient);
  uint64_t travelled = 0;
  for (const FakeConnection::Chunk& c : window.chunks) {
    const std::vector<uint8_t> bytes = c.Bytes();
    ASSERT_LE(bytes.size(), kSymbolBytes);
    const auto chunk = codec::ParseChunk(bytes);
    ASSERT_TRUE(chunk.ok());
    EXPECT_EQ(chunk->encoding, codec::ChunkEncoding::kGapSparse);
    travelled += chunk->nonzero;
    if (chunk->index != 0) continue;
    EXPECT_EQ(chunk->nonzero, capacity);
    // The largest of the chunk travel, and they are sent as they are.
    std::vector<float> sent(chunk->count);
    codec::DecodeChunk(*chunk, sent);
    float least_sent = 1e30f, most_left = 0;
    for (size_t i = 0; i < sent.size(); ++i) {
      if (sent[i] != 0) {
        EXPECT_EQ(sent[i], gradient[i]);
        least_sent = std::min(least_sent, std::abs(sent[i]));
      } else {
        most_left = std::max(most_left, std::abs(gradient[i]));
      }
    }
    EXPECT_GE(least_sent, most_left);
  }
  // A tenth, less what the first chunk had to leave out (almost all of it is above the threshold).
  const double wanted = 0.1 * static_cast<double>(gradient.size()) - (8 * 345 - capacity);
  EXPECT_NEAR(static_cast<double>(travelled), wanted, 0.02 * static_cast<double>(gradient.size()));
}

// What the header says of a chunk is known before the chunk is made: also where squares leave float's range,
// and of a chunk that has to leave out some of the largest elements.
TEST(PushPipelineTest, TheEnergyIsOfWhatTravels) {
  for (const codec::WireFormat& format :
       {codec::WireFormat{}, codec::WireFormat{.gradient = DType::kFloat32, .topk_share = 0.1}}) {
    for (const float scale : {1.0f, 1e-25f, 1e25f}) {
      const TensorShape shape = ShapeOf(40 * kChunkElements + 3, format);
      Pipeline pipeline(shape, SettingsFor(format, LossPolicy::kResidual));
      Random random(31);
      std::vector<float> gradient(shape.geometry.count, 0.0f);
      for (size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = static_cast<float>(random.Normal()) * (i < 4 * kChunkElements ? scale : 0.1f * scale);
      }
      for (const FakeConnection::Chunk& c : Push(pipeline, 0, gradient).chunks) {
        const std::vector<uint8_t> bytes = c.Bytes();
        const auto chunk = codec::ParseChunk(bytes);
        ASSERT_TRUE(chunk.ok());
        std::vector<float> sent(chunk->count);
        codec::DecodeChunk(*chunk, sent);
        EXPECT_EQ(chunk->log_energy, codec::QuantizeEnergy(codec::ChunkEnergy(sent)))
            << NameOf(format) << " scale " << scale << " chunk " << chunk->index;
      }
    }
  }
}

TEST(PushPipelineTest, AGradientThatIsNotFiniteIsRefusedByNameAndLeavesNoTrace) {
  for (const LossPolicy policy : {LossPolicy::kZero, LossPolicy::kResidual, LossPolicy::kShift}) {
    const TensorShape shape = ShapeOf(20 * kChunkElements);
    Pipeline pipeline(shape, SettingsWith(0.2, policy));
    std::vector<float> gradient = GradientOf(shape.geometry);
    Close(pipeline, Push(pipeline, 0, gradient), true, {0, 1, 2});
    const auto memory = [&] {
      std::vector<float> all(pipeline.residual().begin(), pipeline.residual().end());
      all.insert(all.end(), pipeline.shift().begin(), pipeline.shift().end());
      return all;
    };
    const std::vector<float> before = memory();
    EXPECT_EQ(std::ranges::any_of(before, [](float x) { return x != 0; }), policy != LossPolicy::kZero);
    for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
      std::vector<float> broken = gradient;
      broken[7 * kChunkElements + 2] = bad;
      broken[9 * kChunkElements] = bad;
      const auto begun = Survey(pipeline, 1, broken, true);
      ASSERT_FALSE(begun.ok());
      EXPECT_EQ(begun.status().code(), StatusCode::kInvalidArgument);
      EXPECT_NE(begun.status().message().find("chunk 7 (elements 2415 to 2759)"), std::string::npos)
          << begun.status().message();
      EXPECT_EQ(memory(), before);
    }
    Close(pipeline, Push(pipeline, 1, gradient), true, {});
  }
}

// All that follows is what it would have been without the refused ones: bytes, classes, memory.
TEST(PushPipelineTest, ARefusedGradientChangesNothingOfWhatFollows) {
  for (const LossPolicy policy : {LossPolicy::kZero, LossPolicy::kResidual, LossPolicy::kShift}) {
    for (const codec::WireFormat& format : kFormats) {
      if (format.topk_share > 0 && !codec::Remembers(policy)) continue;
      const TensorShape shape = ShapeOf(50 * kChunkElements + 7, format);
      Pipeline refuses(shape, SettingsFor(format, policy)), other(shape, SettingsFor(format, policy));
      Random random(29);
      for (uint32_t round = 0; round < 4; ++round) {
        const std::vector<float> gradient = RandomGradient(random, shape.geometry.count);
        std::vector<float> bad = RandomGradient(random, shape.geometry.count);
        bad[round == 0 ? 0 : round == 1 ? bad.size() - 1 : random.Below(bad.size())] = std::nanf("");
        EXPECT_FALSE(Survey(refuses, round, bad, true, /*epoch=*/round / 2).ok());
        EXPECT_TRUE(refuses.idle());
        std::vector<std::vector<uint8_t>> bytes[2];
        transport::WindowReceipt receipt;
        for (Pipeline* pipeline : {&refuses, &other}) {
          ASSERT_TRUE(Survey(*pipeline, round, gradient, true, round / 2).ok());
          const FakeConnection::Window& window = Submit(*pipeline, round + 1);
          if (pipeline == &refuses) receipt = RandomReceipt(window, random, 0.2);
          for (const auto& chunk : window.chunks) bytes[pipeline == &other].push_back(chunk.Bytes());
          EXPECT_EQ(window.options.high_count, refuses.window().high_count);
          Close(*pipeline, receipt);
        }
        EXPECT_EQ(bytes[0], bytes[1]) << NameOf(format) << ", round " << round;
        EXPECT_TRUE(std::ranges::equal(refuses.residual(), other.residual())) << NameOf(format);
        EXPECT_TRUE(std::ranges::equal(refuses.shift(), other.shift())) << NameOf(format);
      }
    }
  }
}

// Closed, given up or sent again after a part of it was submitted: nothing of a gradient is lost.
TEST(PushPipelineTest, WhatWasNotSubmittedYetIsOwedAsWell) {
  enum class End { kClosed, kAbandoned, kCounted, kSentAgain };
  for (const codec::WireFormat& format : kFormats) {
    for (const End end : {End::kClosed, End::kAbandoned, End::kCounted, End::kSentAgain}) {
      const TensorShape shape = ShapeOf(12 * ShapeOf(1, format).gradient().chunk_elements + 7, format);
      const codec::ChunkGeometry geometry = shape.gradient();
      Pipeline pipeline(shape, SettingsFor(format, LossPolicy::kResidual));
      Random random(30);
      std::vector<float> expected(geometry.count, 0.0f);
      for (uint32_t round = 0; round < 4; ++round) {
        std::vector<float> gradient = RandomGradient(random, geometry.count);
        gradient[geometry.First(2)] = -0.0f;
        for (size_t i = 0; i < expected.size(); ++i) expected[i] += gradient[i];
        transport::WindowOptions options = *Survey(pipeline, round, gradient);
        options.key = {2 * round, 0};
        ASSERT_TRUE(pipeline.connection.OpenWindow(options).ok());
        WorkBudget some(7 * geometry.chunk_elements);
        ASSERT_TRUE(pipeline.Submit(pipeline.connection, options.key, some).ok());
        ASSERT_FALSE(pipeline.submitted());
        std::vector<float> sent(geometry.count, 0.0f);
        if (end == End::kAbandoned) {
          pipeline.Abandon();
        } else if (end == End::kCounted) {
          pipeline.Rewind();
          pipeline.OnCounted(transport::ChunkBitmap(geometry.chunks()));
          WorkBudget everything = WorkBudget::Everything();
          EXPECT_TRUE(pipeline.Settle(everything));
        } else {
          if (end == End::kSentAgain) {
            pipeline.Rewind();
            Submit(pipeline, 2 * round + 1);
            options.key = {2 * round + 1, 0};
          }
          const FakeConnection::Window& window = pipeline.connection.outgoing.at(options.key);
          transport::WindowReceipt receipt;
          receipt.high = transport::ChunkBitmap(window.options.high_count);
          receipt.low = transport::ChunkBitmap(window.options.low_count);
          for (uint32_t i = 0; i < window.high.size(); i += 2) receipt.high.Set(i);
          for (uint32_t i = 0; i < window.low.size(); i += 2) receipt.low.Set(i);
          Apply(window, receipt, geometry, sent);
          Close(pipeline, receipt);
        }
        EXPECT_TRUE(pipeline.idle());
        for (size_t i = 0; i < expected.size(); ++i) {
          expected[i] -= sent[i];
          ASSERT_EQ(pipeline.residual()[i], expected[i])
              << NameOf(format) << " end " << static_cast<int>(end) << " element " << i << " round " << round;
        }
      }
    }
  }
}

// A server may say what it likes.
TEST(PushPipelineTest, ChunksThatCountedBeforeTheyWereSentAreNotOwed) {
  for (const codec::WireFormat& format : kFormats) {
    const TensorShape shape = ShapeOf(50 * kChunkElements + 7, format);
    Pipeline pipeline(shape, SettingsFor(format, LossPolicy::kResidual));
    Random random(32);
    const std::vector<float> gradient = RandomGradient(random, shape.geometry.count);
    transport::WindowOptions options = *Survey(pipeline, 0, gradient);
    options.key = {1, 0};
    ASSERT_TRUE(pipeline.connection.OpenWindow(options).ok());
    Close(pipeline, Receipt(pipeline.connection.outgoing.at(options.key), true, {}));
    EXPECT_TRUE(pipeline.idle());
    const bool rounded = format.gradient != DType::kFloat32 || format.topk_share > 0;
    EXPECT_EQ(std::ranges::any_of(pipeline.residual(), [](float owed) { return owed != 0; }), rounded);
  }
}

// float32 of a tensor that owes nothing leaves from the caller's memory; but what is prepared has no minus
// zero, so a chunk with zeros does not.
TEST(PushPipelineTest, AGradientLeavesFromWhereItIsUnlessThatChangesABit) {
  const TensorShape shape = ShapeOf(10 * kChunkElements);
  Pipeline pipeline(shape, SettingsWith(1));
  std::vector<float> gradient(shape.geometry.count, 1.0f);
  gradient[3 * kChunkElements] = -0.0f;
  const FakeConnection::Window& window = Push(pipeline, 0, gradient);
  for (uint32_t c = 0; c < 10; ++c) {
    const auto* body = reinterpret_cast<const float*>(window.high[c].body.data());
    EXPECT_EQ(body == gradient.data() + c * kChunkElements, c != 3) << "chunk " << c;
  }
  EXPECT_FALSE(std::signbit(reinterpret_cast<const float*>(window.high[3].body.data())[0]));
  Close(pipeline, window, true, {});
  EXPECT_TRUE(std::ranges::all_of(pipeline.residual(), [](float owed) { return owed == 0; }));
}

TEST(PushPipelineTest, AValueThatCannotBeSummedIsRefusedByItsBound) {
  const TensorShape shape = ShapeOf(2 * kChunkElements);
  PushPipeline::Settings settings = SettingsWith(0.2);
  settings.world_size = 4;
  Pipeline pipeline(shape, settings);
  const float largest = codec::LargestGradient(4, settings.weight);
  std::vector<float> gradient(shape.geometry.count, largest);
  Close(pipeline, Push(pipeline, 0, gradient), true, {});
  gradient[kChunkElements] = -std::nextafter(largest, HUGE_VALF);
  const auto refused = Survey(pipeline, 1, gradient);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("chunk 1"), std::string::npos) << refused.status().message();
  EXPECT_NE(refused.status().message().find("4 workers of weight 2"), std::string::npos)
      << refused.status().message();
}

TEST(PushPipelineTest, ADebtThatOverflowsIsDroppedAndTheNextPushGoesOn) {
  const TensorShape shape = ShapeOf(20 * kChunkElements);
  Pipeline pipeline(shape, SettingsWith(0.2));
  // Of what a worker of weight 2 sends at most, 2.1e37, a gradient may have a quarter.
  const std::vector<float> huge(shape.geometry.count, 5e36f);
  for (uint64_t round = 0; round < 4; ++round) {
    Close(pipeline, Push(pipeline, round, huge), false, {});  // nothing of the high class arrived
  }
  EXPECT_EQ(pipeline.debts_dropped(), 0u);
  const auto owed =
      static_cast<uint64_t>(std::ranges::count_if(pipeline.residual(), [](float x) { return x > 1.9e37f; }));
  ASSERT_GT(owed, 0u);
  const std::vector<float> large(shape.geometry.count, 4e36f);
  ASSERT_TRUE(Survey(pipeline, 4, large, true).ok());
  Submit(pipeline, 5);
  EXPECT_EQ(pipeline.debts_dropped(), owed / kChunkElements);
  pipeline.Abandon();
  EXPECT_EQ(std::vector<float>(pipeline.residual().begin(), pipeline.residual().end()), large)
      << "the gradient alone";
}

TEST(PushPipelineTest, ExplicitRangesAreHighWhateverTheirEnergy) {
  const TensorShape shape = ShapeOf(50 * kChunkElements);
  PushPipeline::Settings settings = SettingsWith(0.1);
  settings.high_ranges = {{.first = 3 * kChunkElements, .count = 1}};
  Pipeline pipeline(shape, settings);
  const std::vector<float> gradient = GradientOf(shape.geometry);  // energy grows with the chunk's number
  const FakeConnection::Window& window = Push(pipeline, 0, gradient);
  ASSERT_EQ(window.high.size(), 5u);
  EXPECT_EQ(IndicesOf(window.high)[0], 3u);
}

// Five parts of ten chunks each; the fourth matters most, then the first. Energy grows with the chunk's
// number.
TEST(PushPipelineTest, ScoresOfPartsDecideFromTheNextGradientOn) {
  const TensorShape shape = ShapeOf(50 * kChunkElements);
  Pipeline pipeline(shape, SettingsWith(0.22));
  const std::vector<float> gradient = GradientOf(shape.geometry);
  pipeline.SetScores(std::vector<float>{2, 0, 0, 3, 0});
  const FakeConnection::Window& window = Push(pipeline, 0, gradient);
  EXPECT_EQ(IndicesOf(window.high), (std::vector<uint32_t>{0, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39}));
}

// A part that ends within a chunk makes the whole chunk count.
TEST(PushPipelineTest, AChunkCountsAsMuchAsTheBestOfItsParts) {
  const TensorShape shape = ShapeOf(10 * kChunkElements);
  Pipeline pipeline(shape, SettingsWith(0.4));
  // Of two and a half chunks each: the second one is in chunks 2, 3 and 4.
  pipeline.SetScores(std::vector<float>{0, 1, 0, 0});
  const std::vector<float> gradient = GradientOf(shape.geometry);
  const FakeConnection::Window& window = Push(pipeline, 0, gradient);
  EXPECT_EQ(IndicesOf(window.high), (std::vector<uint32_t>{0, 2, 3, 4}))
      << "and the first of those that do not count";
}

// No call works on more elements than its budget and one chunk, whatever the tensor's size: seen from
// outside, by what changes, by how often it is called, and by how many chunks come.
TEST(PushPipelineTest, EverySliceIsBoundedByItsBudget) {
  constexpr uint64_t kElements = 20'000;
  for (const codec::WireFormat& format : kFormats) {
    const TensorShape shape = ShapeOf(400 * kChunkElements + 7, format);
    Pipeline pipeline(shape, SettingsFor(format, LossPolicy::kResidual));
    std::vector<float> gradient(shape.geometry.count, 1.0f);
    for (uint32_t c = 0; c < shape.gradient().chunks(); ++c) gradient[shape.gradient().First(c)] = 0;
    const uint64_t most = kElements + shape.gradient().chunk_elements;
    auto changed = [&, before = std::vector<float>(gradient.size())]() mutable {
      const std::span<const float> now = pipeline.residual();
      uint64_t changes = 0;
      for (size_t i = 0; i < now.size(); ++i) changes += now[i] != before[i] ? 1 : 0;
      before.assign(now.begin(), now.end());
      return changes;
    };
    const uint64_t least_calls = gradient.size() / most;
    uint64_t calls = 0;
    pipeline.Begin(0, gradient, false);
    for (bool over = false; !over; ++calls) {
      WorkBudget budget(kElements);
      over = pipeline.Survey(budget);
      EXPECT_EQ(changed(), 0u) << NameOf(format) << ": it only looks";
    }
    EXPECT_GE(calls, least_calls) << NameOf(format);

    transport::WindowOptions options = pipeline.window();
    options.key = {1, 0};
    ASSERT_TRUE(pipeline.connection.OpenWindow(options).ok());
    const FakeConnection::Window& window = pipeline.connection.outgoing.at(options.key);
    uint64_t combined = 0;
    calls = 0;
    for (; !pipeline.submitted(); ++calls) {
      WorkBudget budget(kElements);
      ASSERT_TRUE(pipeline.Submit(pipeline.connection, options.key, budget).ok());
      const uint64_t elements = changed();
      EXPECT_LE(elements, most) << NameOf(format);
      combined += elements;
    }
    EXPECT_GE(calls, least_calls) << NameOf(format);
    EXPECT_EQ(combined, gradient.size() - shape.gradient().chunks()) << "all but the zeros";

    pipeline.OnClosed(Receipt(window, true, {}), {});
    EXPECT_EQ(changed(), 0u) << "what arrived is not taken off the residual at once";
    for (bool over = false; !over;) {
      WorkBudget budget(kElements);
      over = pipeline.Settle(budget);
      EXPECT_LE(changed(), most) << NameOf(format);
    }
  }
}

TEST(PushPipelineTest, ReplaysToTheBitAndRanksRoundDifferently) {
  const TensorShape shape = ShapeOf(10 * kChunkElements, {DType::kInt8});
  Random random(27);
  const std::vector<float> gradient = RandomGradient(random, shape.geometry.count);
  const auto all_bytes = [&](uint32_t rank, uint64_t round) {
    PushPipeline::Settings settings = SettingsFor({DType::kInt8}, LossPolicy::kResidual);
    settings.rank = rank;
    settings.high_share = 1;
    Pipeline pipeline(shape, settings);
    std::vector<uint8_t> bytes;
    for (const auto& chunk : Push(pipeline, round, gradient).high) {
      const std::vector<uint8_t> one = chunk.Bytes();
      bytes.insert(bytes.end(), one.begin(), one.end());
    }
    return bytes;
  };
  EXPECT_EQ(all_bytes(1, 5), all_bytes(1, 5));
  EXPECT_NE(all_bytes(1, 5), all_bytes(2, 5));
  EXPECT_NE(all_bytes(1, 5), all_bytes(1, 6));
}

// Noise that all chunks share would not average out over them.
TEST(PushPipelineTest, ChunksOfEqualValuesAreRoundedDifferently) {
  const uint32_t in_chunk = ShapeOf(100'000, {DType::kInt8}).gradient().chunk_elements;
  const TensorShape shape = ShapeOf(2 * in_chunk, {DType::kInt8});
  PushPipeline::Settings settings = SettingsFor({DType::kInt8}, LossPolicy::kResidual);
  settings.high_share = 1;
  Pipeline pipeline(shape, settings);
  Random random(28);
  std::vector<float> gradient = RandomGradient(random, in_chunk);
  gradient.resize(2 * size_t{in_chunk});
  std::copy_n(gradient.begin(), in_chunk, gradient.begin() + in_chunk);
  const FakeConnection::Window& window = Push(pipeline, 0, gradient);
  ASSERT_EQ(window.high.size(), 2u);
  const auto codes = [](const std::vector<uint8_t>& chunk) {
    return std::vector<uint8_t>(chunk.begin() + codec::kChunkHeaderBytes, chunk.end());
  };
  EXPECT_NE(codes(window.high[0].Bytes()), codes(window.high[1].Bytes()));
}

}  // namespace
}  // namespace longhaul::worker
