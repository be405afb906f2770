// A step of an optimizer over a chunk: all arrays in one pass, against one pass per array.

#include <benchmark/benchmark.h>
#include <Eigen/Core>

#include <cmath>
#include <vector>

#include "codec/policy/optimizer.h"

namespace longhaul::codec {
namespace {

constexpr size_t kCount = 1'000'000;  // 4 MB per array: none of them stays in a core's cache
constexpr size_t kChunk = 345;

struct Arrays {
  std::vector<float> gradient = std::vector<float>(kCount, 0.5f);
  std::vector<float> current = std::vector<float>(kCount, 1.0f);
  std::vector<float> updated = std::vector<float>(kCount);
};

void Report(benchmark::State& state) {
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * kCount));
}

// Chunk by chunk, as a round does it.
void BM_OptimizerStep(benchmark::State& state, const char* text) {
  auto optimizer = MakeOptimizer(*ParseOptimizer(text), kCount);
  Arrays a;
  uint64_t step = 0;
  for (auto _ : state) {
    ++step;
    for (size_t first = 0; first < kCount; first += kChunk) {
      const size_t n = std::min(kChunk, kCount - first);
      optimizer->Step(step, first, std::span<const float>(a.gradient).subspan(first, n),
                      std::span<const float>(a.current).subspan(first, n),
                      std::span(a.updated).subspan(first, n));
    }
    benchmark::ClobberMemory();
  }
  Report(state);
}
BENCHMARK_CAPTURE(BM_OptimizerStep, sgd, "sgd:lr=0.1");
BENCHMARK_CAPTURE(BM_OptimizerStep, nesterov, "sgd:lr=0.1,momentum=0.9,nesterov");
BENCHMARK_CAPTURE(BM_OptimizerStep, adam, "adam:lr=0.001");
BENCHMARK_CAPTURE(BM_OptimizerStep, adamw, "adamw:lr=0.001");

// The same Adam, an expression per array over the whole tensor.
void BM_AdamSeparatePasses(benchmark::State& state) {
  using Array = Eigen::ArrayXf;
  Array g = Array::Constant(kCount, 0.5f), w = Array::Constant(kCount, 1.0f);
  Array m = Array::Zero(kCount), v = Array::Zero(kCount), denominator(kCount), updated(kCount);
  int step = 0;
  for (auto _ : state) {
    ++step;
    const auto rate = static_cast<float>(0.001 / (1 - std::pow(0.9, step)));
    const auto root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(0.999, step)));
    m = 0.9f * m + 0.1f * g;
    v = 0.999f * v + 0.001f * g * g;
    denominator = root_scale * v.sqrt() + 1e-8f;
    updated = w - rate * m / denominator;
    benchmark::ClobberMemory();
  }
  Report(state);
}
BENCHMARK(BM_AdamSeparatePasses);

// The same Adam, one pass, element by element.
void BM_AdamPlainLoop(benchmark::State& state) {
  Arrays a;
  std::vector<float> mean(kCount), mean_square(kCount);
  int step = 0;
  for (auto _ : state) {
    ++step;
    const auto rate = static_cast<float>(0.001 / (1 - std::pow(0.9, step)));
    const auto root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(0.999, step)));
    for (size_t i = 0; i < kCount; ++i) {
      const float g = a.gradient[i];
      mean[i] = 0.9f * mean[i] + 0.1f * g;
      mean_square[i] = 0.999f * mean_square[i] + 0.001f * g * g;
      a.updated[i] = a.current[i] - rate * mean[i] / (root_scale * std::sqrt(mean_square[i]) + 1e-8f);
    }
    benchmark::ClobberMemory();
  }
  Report(state);
}
BENCHMARK(BM_AdamPlainLoop);

}  // namespace
}  // namespace longhaul::codec
