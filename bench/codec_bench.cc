// What a source block and a chunk cost. Symbols of 1392 bytes: a chunk of 345 floats.
//
// These run on warm caches and one core; in a worker the tensor comes from memory, which is slower.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <vector>

#include "base/random.h"
#include "codec/chunk/chunk.h"
#include "codec/chunk/quantize.h"
#include "codec/chunk/top_k.h"
#include "codec/fec/fec.h"
#include "codec/policy/filler.h"
#include "codec/policy/priority.h"
#include "codec/policy/sender_memory.h"
#include "tests/sim/reference_coder.h"

namespace longhaul::codec {
namespace {

constexpr size_t kSymbolBytes = 1392;

std::unique_ptr<ErasureCoder> MakeCoder(bool library) {
  if (!library) return std::make_unique<ReferenceCoder>();
  auto created = ErasureCodeLibrary::Create();
  return created.ok() ? std::unique_ptr<ErasureCoder>(std::move(*created)) : nullptr;
}

// A block of k random source symbols with m repair symbols.
struct Block {
  Block(ErasureCoder& coder, int k, int m)
      : source(static_cast<size_t>(k), std::vector<uint8_t>(kSymbolBytes)),
        repair(static_cast<size_t>(m), std::vector<uint8_t>(kSymbolBytes)) {
    Random random(1);
    for (auto& symbol : source) {
      for (uint8_t& b : symbol) b = static_cast<uint8_t>(random.Next());
    }
    views.assign(source.begin(), source.end());
    targets.assign(source.begin(), source.end());
    repair_targets.assign(repair.begin(), repair.end());
    coder.Encode(k, kSymbolBytes, views, repair_targets);
    for (int i = 0; i < m; ++i) received.push_back({i, repair[static_cast<size_t>(i)]});
  }
  std::vector<std::vector<uint8_t>> source;
  std::vector<std::vector<uint8_t>> repair;
  std::vector<ByteSpan> views;
  std::vector<MutableByteSpan> targets;
  std::vector<MutableByteSpan> repair_targets;
  std::vector<RepairSymbol> received;
};

void CountSourceBytes(benchmark::State& state, int k) {
  state.SetBytesProcessed(state.iterations() * k * static_cast<int64_t>(kSymbolBytes));
}

void EncodeBlock(benchmark::State& state, bool library) {
  const auto coder = MakeCoder(library);
  if (coder == nullptr) return state.SkipWithError("libisal2 is not installed");
  const auto k = static_cast<int>(state.range(0));
  Block block(*coder, k, static_cast<int>(state.range(1)));
  for (auto _ : state) {
    coder->Encode(k, kSymbolBytes, block.views, block.repair_targets);
    benchmark::ClobberMemory();
  }
  CountSourceBytes(state, k);
}

// The first `lost` source symbols are missing, and all m repair symbols have arrived.
void DecodeBlock(benchmark::State& state, bool library) {
  const auto coder = MakeCoder(library);
  if (coder == nullptr) return state.SkipWithError("libisal2 is not installed");
  const auto k = static_cast<int>(state.range(0));
  const auto lost = static_cast<uint32_t>(state.range(2));
  Block block(*coder, k, static_cast<int>(state.range(1)));
  const uint32_t present = ((uint32_t{1} << k) - 1) & ~((uint32_t{1} << lost) - 1);
  for (auto _ : state) {
    const Status status = coder->Decode(k, kSymbolBytes, block.targets, present, block.received);
    if (!status.ok()) state.SkipWithError(status.message().c_str());
    benchmark::ClobberMemory();
  }
  CountSourceBytes(state, k);
}

void BM_FecEncodeBlock(benchmark::State& state) { EncodeBlock(state, true); }
BENCHMARK(BM_FecEncodeBlock)->ArgNames({"k", "m"})->Args({20, 1})->Args({20, 4})->Args({24, 8})->Args({8, 4});

void BM_FecDecodeBlock(benchmark::State& state) { DecodeBlock(state, true); }
BENCHMARK(BM_FecDecodeBlock)
    ->ArgNames({"k", "m", "lost"})
    ->Args({20, 1, 1})
    ->Args({20, 4, 1})
    ->Args({20, 4, 4})
    ->Args({24, 8, 4})
    ->Args({8, 4, 2});

void BM_ReferenceEncodeBlock(benchmark::State& state) { EncodeBlock(state, false); }
BENCHMARK(BM_ReferenceEncodeBlock)->ArgNames({"k", "m"})->Args({20, 4});

std::vector<float> Floats(size_t count, double nonzero_share) {
  Random random(2);
  std::vector<float> values(count, 0.0f);
  for (float& v : values) {
    if (random.Chance(nonzero_share)) v = static_cast<float>(random.Normal()) + 5.0f;
  }
  return values;
}

void CountElements(benchmark::State& state, size_t elements) {
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(elements));
}

void BM_ChunkEnergy(benchmark::State& state) {
  const auto values = Floats(ChunkElementsFor(kSymbolBytes), 1.0);
  for (auto _ : state) benchmark::DoNotOptimize(ChunkEnergy(values));
  CountElements(state, values.size());
}
BENCHMARK(BM_ChunkEnergy);

void BM_ParseAndDecodeChunk(benchmark::State& state) {
  const bool sparse = state.range(0) != 0;
  const auto values = Floats(ChunkElementsFor(kSymbolBytes), sparse ? 0.1 : 1.0);
  const auto count = static_cast<uint32_t>(values.size());
  std::vector<uint8_t> body;
  ChunkHeaderBytes header = EncodeSparseChunk(1, values, 0, &body);
  if (!sparse) {
    header = EncodeDenseHeader(1, count);
    const auto* raw = reinterpret_cast<const uint8_t*>(values.data());
    body.assign(raw, raw + values.size() * sizeof(float));
  }
  std::vector<uint8_t> bytes(header.begin(), header.end());
  bytes.insert(bytes.end(), body.begin(), body.end());
  std::vector<float> out(values.size());
  for (auto _ : state) {
    const auto chunk = ParseChunk(bytes);
    DecodeChunk(*chunk, out);
    benchmark::ClobberMemory();
  }
  CountElements(state, values.size());
}
BENCHMARK(BM_ParseAndDecodeChunk)->ArgName("sparse")->Arg(0)->Arg(1);

// --- Element types of the wire: the fastest kernels of this machine beside the plain loops, in one run ---

constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16,
                            DType::kInt8,    DType::kInt4,     DType::kInt2};

// Processor time that one call takes, over enough calls to be measurable; the machine may be shared.
template <typename F>
double SecondsOf(F f) {
  constexpr int kCalls = 20'000;
  const std::clock_t begun = std::clock();
  for (int i = 0; i < kCalls; ++i) {
    f();
    benchmark::ClobberMemory();
  }
  return static_cast<double>(std::clock() - begun) / CLOCKS_PER_SEC / kCalls;
}

// Times f(kernels); the counter is how many times faster the best ones are than the plain ones.
template <typename F>
void AgainstPlain(benchmark::State& state, size_t elements, F f) {
  for (auto _ : state) {
    f(BestKernels());
    benchmark::ClobberMemory();
  }
  CountElements(state, elements);
  const double plain = SecondsOf([&] { f(PlainKernels()); });
  const double best = SecondsOf([&] { f(BestKernels()); });
  state.counters["times_plain"] = plain / best;
  state.SetLabel(BestKernels().name);
}

// A chunk as it is sent: the symbol is full.
struct FullChunk {
  explicit FullChunk(int64_t type)
      : dtype(kTypes[type]), values(Floats(ChunkElementsFor(kSymbolBytes) * WireRatio(dtype), 1.0)) {
    header = EncodeChunk(1, values, coding(), &body);
  }
  ChunkCoding coding() const { return {.dtype = dtype, .rounding = Rounding::Stochastic(7)}; }
  DType dtype;
  std::vector<float> values;
  std::vector<uint8_t> body;
  ChunkHeaderBytes header{};
};

// Scale, stochastic rounding, count of zeros.
void BM_EncodeChunk(benchmark::State& state) {
  FullChunk chunk(state.range(0));
  AgainstPlain(state, chunk.values.size(), [&](const Kernels& kernels) {
    chunk.body.clear();
    benchmark::DoNotOptimize(EncodeChunk(1, chunk.values, chunk.coding(), &chunk.body, kernels));
  });
}
BENCHMARK(BM_EncodeChunk)->ArgName("dtype")->DenseRange(1, 5);

void BM_QuantizeNearest(benchmark::State& state) {
  FullChunk chunk(state.range(0));
  const uint16_t scale = ScaleOf(chunk.dtype, chunk.values, Rounding::Nearest());
  std::vector<uint8_t> codes(chunk.values.size() * CodeSize(chunk.dtype));
  AgainstPlain(state, chunk.values.size(), [&](const Kernels& kernels) {
    Quantize(chunk.dtype, chunk.values, scale, Rounding::Nearest(), codes, kernels);
  });
}
BENCHMARK(BM_QuantizeNearest)->ArgName("dtype")->DenseRange(1, 5);

// What the server does with a chunk of a worker's gradient.
void BM_DecodeAdd(benchmark::State& state) {
  FullChunk chunk(state.range(0));
  const auto view = ParseChunk(chunk.header, chunk.body);
  std::vector<float> sum(chunk.values.size(), 0.0f);
  AgainstPlain(state, sum.size(),
               [&](const Kernels& kernels) { DecodeAdd(*view, 0.5f, false, sum, kernels); });
}
BENCHMARK(BM_DecodeAdd)->ArgName("dtype")->DenseRange(0, 5);

void BM_DecodeAddSparse(benchmark::State& state) {
  FullChunk chunk(state.range(0));
  const auto values = Floats(chunk.values.size(), 0.1);
  chunk.body.clear();
  chunk.header = EncodeChunk(1, values, chunk.coding(), &chunk.body);
  const auto view = ParseChunk(chunk.header, chunk.body);
  std::vector<float> sum(values.size(), 0.0f);
  AgainstPlain(state, sum.size(),
               [&](const Kernels& kernels) { DecodeAdd(*view, 0.5f, false, sum, kernels); });
}
BENCHMARK(BM_DecodeAddSparse)->ArgName("dtype")->DenseRange(0, 5);

void BM_MaxMagnitude(benchmark::State& state) {
  const auto values = Floats(ChunkElementsFor(kSymbolBytes), 1.0);
  AgainstPlain(state, values.size(), [&](const Kernels& kernels) {
    benchmark::DoNotOptimize(kernels.max_magnitude(values.data(), values.size()));
  });
}
BENCHMARK(BM_MaxMagnitude);

void BM_CountNonzero(benchmark::State& state) {
  const auto values = Floats(ChunkElementsFor(kSymbolBytes), 1.0);
  AgainstPlain(state, values.size(), [&](const Kernels& kernels) {
    benchmark::DoNotOptimize(kernels.count_nonzero(values.data(), values.size()));
  });
}
BENCHMARK(BM_CountNonzero);

// The largest tenth of a tensor of a million elements: threshold and selection.
void BM_TopK(benchmark::State& state) {
  const auto values = Floats(1'000'000, 1.0);
  const ChunkGeometry geometry{values.size(), 4 * ChunkElementsFor(kSymbolBytes)};
  std::vector<float> selected(geometry.chunk_elements);
  for (auto _ : state) {
    const float threshold = TopKThreshold(values, 0.1, 1);
    for (uint32_t c = 0; c < geometry.chunks(); ++c) {
      const auto chunk = geometry.Elements(std::span<const float>(values), c);
      const uint32_t capacity = SparseCapacity(kSymbolBytes, geometry.Length(c), DType::kFloat32);
      SelectTopK(chunk, threshold, capacity, std::span(selected).first(chunk.size()));
      benchmark::ClobberMemory();
    }
  }
  CountElements(state, values.size());
}
BENCHMARK(BM_TopK)->Unit(benchmark::kMicrosecond);

void BM_EncodeSparseChunk(benchmark::State& state) {
  const auto values = Floats(ChunkElementsFor(kSymbolBytes), 0.1);
  std::vector<uint8_t> body;
  for (auto _ : state) {
    body.clear();
    benchmark::DoNotOptimize(EncodeSparseChunk(1, values, 0, &body));
  }
  CountElements(state, values.size());
}
BENCHMARK(BM_EncodeSparseChunk);

// Scoring and ordering a tensor of a million elements.
void BM_ClassifyTensor(benchmark::State& state) {
  const auto values = Floats(1'000'000, 1.0);
  PriorityClassifier classifier({values.size(), ChunkElementsFor(kSymbolBytes)}, {});
  uint64_t round = 0;
  for (auto _ : state) benchmark::DoNotOptimize(classifier.Classify(values, round++));
  CountElements(state, values.size());
}
BENCHMARK(BM_ClassifyTensor)->Unit(benchmark::kMicrosecond);

// The mean of a chunk, by policy (in the order of LossPolicy).
void BM_FillerMean(benchmark::State& state) {
  const auto sum = Floats(ChunkElementsFor(kSymbolBytes), 1.0);
  const auto policy = static_cast<LossPolicy>(state.range(0));
  const auto filler = MakeFiller({.policy = policy}, {sum.size(), ChunkElementsFor(kSymbolBytes)}, 4);
  filler->BeginEpoch(4);
  std::vector<float> mean(sum.size());
  for (auto _ : state) {
    filler->Mean(0, {.arrived = 3, .filled = 1}, sum, mean);
    benchmark::ClobberMemory();
  }
  CountElements(state, sum.size());
  state.SetLabel(std::string(NameOf(policy)));
}
BENCHMARK(BM_FillerMean)->DenseRange(0, 5);

// One round of a worker's memory for a tensor of a million elements, a tenth of its chunks lost.
void BM_SenderMemoryRound(benchmark::State& state) {
  const auto gradient = Floats(1'000'000, 1.0);
  const auto policy = static_cast<LossPolicy>(state.range(0));
  const ChunkGeometry geometry{gradient.size(), ChunkElementsFor(kSymbolBytes)};
  const auto memory = MakeSenderMemory({.policy = policy}, geometry);
  for (auto _ : state) {
    const std::span<const float> prepared = memory->Prepare(gradient);
    for (uint32_t chunk = 0; chunk < geometry.chunks(); ++chunk) {
      memory->SettleChunk(chunk, chunk % 10 != 0, geometry.Elements(prepared, chunk));
    }
    memory->Finish();
  }
  CountElements(state, gradient.size());
  state.SetLabel(std::string(NameOf(policy)));
}
BENCHMARK(BM_SenderMemoryRound)->DenseRange(3, 5)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace longhaul::codec
