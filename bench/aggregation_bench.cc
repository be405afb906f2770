// Adding a worker's chunk to the round's sum, as it arrives.

#include <benchmark/benchmark.h>

#include <vector>

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

}  // namespace
}  // namespace longhaul::server
