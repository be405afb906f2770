// Adding a worker's chunk to the round's sum, as it arrives.

#include <benchmark/benchmark.h>

#include <vector>

#include "base/random.h"
#include "codec/chunk/chunk.h"
#include "server/tensor/aggregator.h"

namespace longhaul::server {
namespace {

// Decodes and adds every chunk of a 4 MB tensor from `ranks` workers; then the next round.
void BM_AggregateRound(benchmark::State& state) {
  const auto ranks = static_cast<uint32_t>(state.range(0));
  const codec::ChunkGeometry geometry{1'000'000, codec::ChunkElementsFor(1392)};
  Aggregator aggregator(geometry, ranks);
  std::vector<float> gradient(geometry.chunk_elements, 0.5f);
  std::vector<uint8_t> bytes;
  const auto header = codec::EncodeDenseHeader(0, geometry.chunk_elements);
  bytes.assign(header.begin(), header.end());
  const auto* raw = reinterpret_cast<const uint8_t*>(gradient.data());
  bytes.insert(bytes.end(), raw, raw + gradient.size() * sizeof(float));
  std::vector<float> values(geometry.chunk_elements);
  for (auto _ : state) {
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      for (uint32_t chunk = 0; chunk < geometry.chunks(); ++chunk) {
        const auto view = codec::ParseChunk(bytes);
        codec::DecodeChunk(*view, values);
        aggregator.Add(rank, chunk, std::span<const float>(values).first(geometry.Length(chunk)), 1.0f);
      }
    }
    aggregator.Reset();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * ranks * geometry.count * sizeof(float)));
}
BENCHMARK(BM_AggregateRound)->Arg(1)->Arg(4);

// A round of a 1 MB tensor from `ranks` workers, until every chunk has its value; values are decoded already.
// One over items_per_second is the time per element and worker.
void Aggregate(benchmark::State& state, Aggregation how) {
  const auto ranks = static_cast<uint32_t>(state.range(0));
  const codec::ChunkGeometry geometry{250'000, codec::ChunkElementsFor(1392)};
  Aggregator aggregator(geometry, ranks, Aggregator::Order::kArrival, how);
  Random random(1);
  std::vector<std::vector<float>> values(ranks, std::vector<float>(geometry.chunk_elements));
  for (auto& of_rank : values) {
    for (float& v : of_rank) v = static_cast<float>(random.Normal());
  }
  for (auto _ : state) {
    for (uint32_t chunk = 0; chunk < geometry.chunks(); ++chunk) {
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        aggregator.Add(rank, chunk, std::span<const float>(values[rank]).first(geometry.Length(chunk)), 1.0f);
      }
      benchmark::DoNotOptimize(aggregator.sum(chunk, LiarsAmong(ranks, 0.25)).data());
    }
    aggregator.Reset();
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * ranks * geometry.count));
}
void BM_RobustMean(benchmark::State& state) { Aggregate(state, Aggregation::kMean); }
void BM_RobustTrimmedMean(benchmark::State& state) { Aggregate(state, Aggregation::kTrimmedMean); }
void BM_RobustCentredClipping(benchmark::State& state) { Aggregate(state, Aggregation::kCentredClipping); }
BENCHMARK(BM_RobustMean)->Arg(4)->Arg(16);
BENCHMARK(BM_RobustTrimmedMean)->Arg(4)->Arg(16);
BENCHMARK(BM_RobustCentredClipping)->Arg(4)->Arg(16);

}  // namespace
}  // namespace longhaul::server
