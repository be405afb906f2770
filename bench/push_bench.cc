// What a push of 25 million floats costs the worker's thread: until its window can be opened and the first
// chunk leaves, until all chunks are handed over, and after the window is closed. Beside it a memcpy of the
// same 100 MB, in the same rounds. Processor time, medians over rounds; one low chunk of a hundred is lost.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "base/random.h"
#include "tests/transport/fake_connection.h"
#include "worker/client/push_pipeline.h"

namespace longhaul::worker {
namespace {

constexpr uint64_t kElements = 25'000'000;
constexpr uint16_t kSymbolBytes = 1392;
constexpr int kRounds = 15;

// Takes chunks and forgets them.
class Nowhere final : public transport::FakeConnection {
 public:
  Status SubmitChunk(transport::WindowKey, wire::ReliabilityClass, ByteSpan header, ByteSpan body) override {
    benchmark::DoNotOptimize(header.data());
    benchmark::DoNotOptimize(body.data());
    return Status::Ok();
  }
};

double ThreadMs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

template <typename F>
double MsOf(F f) {
  const double begun = ThreadMs();
  f();
  return ThreadMs() - begun;
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Every hundredth chunk of the low class is lost.
transport::WindowReceipt ReceiptOf(const transport::WindowOptions& window) {
  transport::WindowReceipt receipt;
  receipt.high_complete = true;
  receipt.low = transport::ChunkBitmap(window.low_count);
  for (uint32_t i = 0; i < window.low_count; ++i) {
    if (i % 100 != 99) receipt.low.Set(i);
  }
  return receipt;
}

const std::vector<float>& Gradient() {
  static const std::vector<float> gradient = [] {
    Random random(1);
    std::vector<float> values(kElements);
    for (float& v : values) v = static_cast<float>(random.Uniform()) - 0.5f;
    return values;
  }();
  return gradient;
}

void Push(benchmark::State& state, LossPolicy policy, codec::WireFormat format) {
  PushPipeline::Settings settings;
  settings.policy = policy;
  settings.symbol_bytes = kSymbolBytes;
  if (format.topk_share > 0) settings.priority = Priority::kTopK;
  const TensorShape shape{
      .key = 1, .geometry = {kElements, codec::ChunkElementsFor(kSymbolBytes)}, .format = format};
  const std::vector<float>& gradient = Gradient();
  std::vector<float> copy(gradient);
  PushPipeline pipeline(shape, settings);
  Nowhere connection;
  std::vector<double> ready, first_slice, submit, settle, memcpy_ms;
  double first = 0;
  uint64_t round = 0;
  for (auto _ : state) {
    WorkBudget everything = WorkBudget::Everything();
    memcpy_ms.push_back(MsOf([&] {
      std::ranges::copy(gradient, copy.begin());
      benchmark::DoNotOptimize(copy.data());
    }));
    pipeline.Begin(round, gradient, /*wants_result=*/true);
    const double prepared = MsOf([&] { pipeline.Survey(everything); });
    state.SetIterationTime(prepared / 1e3);
    transport::WindowOptions window = pipeline.window();
    window.key = {static_cast<uint32_t>(round), 0};
    if (!connection.OpenWindow(window).ok()) return state.SkipWithError("the window does not open");
    const double slice = MsOf([&] {
      WorkBudget budget;
      (void)pipeline.Submit(connection, window.key, budget);
    });
    const double rest = MsOf([&] { (void)pipeline.Submit(connection, window.key, everything); });
    connection.outgoing.clear();
    pipeline.OnClosed(ReceiptOf(window), {});
    const double settled = MsOf([&] { pipeline.Settle(everything); });
    if (round++ == 0) {
      first = prepared + slice;
      continue;
    }
    ready.push_back(prepared);
    first_slice.push_back(prepared + slice);
    submit.push_back(slice + rest);
    settle.push_back(settled);
  }
  state.counters["first_push_ms"] = first;                // memory is touched for the first time
  state.counters["prepare_ms"] = Median(ready);           // until the window can be opened
  state.counters["first_byte_ms"] = Median(first_slice);  // and the first slice of chunks is handed over
  state.counters["submit_ms"] = Median(submit);           // all chunks, the first slice included
  state.counters["settle_ms"] = Median(settle);
  state.counters["memcpy_ms"] = Median(memcpy_ms);
  state.counters["of_memcpy"] = Median(ready) / Median(memcpy_ms);
}

const int kRegistered = [] {
  const std::pair<const char*, codec::WireFormat> formats[] = {
      {"float32", {}},
      {"bf16", {DType::kBFloat16}},
      {"int8", {DType::kInt8}},
      {"topk", {.gradient = DType::kFloat32, .topk_share = 0.1}}};
  for (const LossPolicy policy : {LossPolicy::kZero, LossPolicy::kResidual, LossPolicy::kShift}) {
    for (const auto& [name, format] : formats) {
      if (format.topk_share > 0 && !codec::Remembers(policy)) continue;
      benchmark::RegisterBenchmark(("BM_Push/" + std::string(NameOf(policy)) + "/" + name).c_str(), Push,
                                   policy, format)
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond)
          ->Iterations(kRounds + 1);
    }
  }
  return 0;
}();

}  // namespace
}  // namespace longhaul::worker
