// K sources to one beside memcpy in the same run: offload/reduce.

#include <benchmark/benchmark.h>

#include <cstring>
#include <ctime>
#include <vector>

#include "offload/reduce/kernels.h"
#include "offload/reduce/reduce.h"

namespace longhaul::offload {
namespace {

constexpr size_t kSources = 4;

// Of this thread's processor: neighbours on the machine do not count.
double CpuSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// By turns: four sources of the size become one, and memcpy moves one of that size. GB are 1e9 bytes.
//   in_GBps      bytes of all sources a second
//   moved_GBps   bytes read and written a second
//   share        of memcpy's bytes read and written a second
void BM_ReduceAs(benchmark::State& state, DataType type, const char* target) {
  if (!UseReduceTarget(target)) return state.SkipWithError("this machine does not have it");
  const auto bytes = static_cast<size_t>(state.range(0)) << 20;
  std::vector<std::vector<std::byte>> memory(kSources + 2, std::vector<std::byte>(bytes));
  std::vector<const std::byte*> sources;
  for (size_t k = 0; k < kSources; ++k) sources.push_back(memory[k].data());
  double reducing = 0;
  double copying = 0;
  for (auto _ : state) {
    const double start = CpuSeconds();
    if (!Reduce(ReduceOp::kSum, type, sources, bytes / SizeOf(type), memory[kSources].data()).ok()) return;
    const double seconds = CpuSeconds() - start;
    state.SetIterationTime(seconds);
    reducing += seconds;
    const double copy = CpuSeconds();
    std::memcpy(memory[kSources + 1].data(), memory[0].data(), bytes);
    benchmark::DoNotOptimize(memory[kSources + 1].data());
    copying += CpuSeconds() - copy;
  }
  UseReduceTarget("");
  const double calls = static_cast<double>(state.iterations()) * static_cast<double>(bytes) / 1e9;
  state.counters["in_GBps"] = calls * kSources / reducing;
  state.counters["moved_GBps"] = calls * (kSources + 1) / reducing;
  state.counters["memcpy_GBps"] = calls * 2 / copying;
  state.counters["share"] = calls * (kSources + 1) / reducing / (calls * 2 / copying);
}

void BM_Reduce(benchmark::State& state) { BM_ReduceAs(state, DataType::kFloat32, ""); }
BENCHMARK(BM_Reduce)->ArgName("MiB")->Arg(4)->Arg(64)->UseManualTime();

BENCHMARK_CAPTURE(BM_ReduceAs, bf16, DataType::kBfloat16, "")->ArgName("MiB")->Arg(4)->UseManualTime();
BENCHMARK_CAPTURE(BM_ReduceAs, fp16, DataType::kFloat16, "")->ArgName("MiB")->Arg(4)->UseManualTime();
BENCHMARK_CAPTURE(BM_ReduceAs, q32, DataType::kQ32, "")->ArgName("MiB")->Arg(4)->UseManualTime();
BENCHMARK_CAPTURE(BM_ReduceAs, fp32_AVX2, DataType::kFloat32, "AVX2")
    ->ArgName("MiB")
    ->Arg(4)
    ->Arg(64)
    ->UseManualTime();
BENCHMARK_CAPTURE(BM_ReduceAs, fp32_portable, DataType::kFloat32, "EMU128")
    ->ArgName("MiB")
    ->Arg(4)
    ->UseManualTime();

}  // namespace
}  // namespace longhaul::offload
