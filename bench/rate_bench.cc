// The cost of fitting the path: once per round (OnRound) and once per window (Fit).

#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "tests/transport/probed_path.h"
#include "transport/core/rate/target_loss_fit.h"

namespace longhaul::transport {
namespace {

// Rounds in equal parts of DOWN, CRUISE and UP, so that every place of the memory is taken.
std::vector<RateRound> Rounds(size_t count) {
  Prober prober({.loss = 0.05, .capacity = 400}, 1);
  std::vector<RateRound> rounds;
  for (size_t i = 0; i < count; ++i) rounds.push_back(prober.Send(static_cast<RatePhase>(i % kRatePhases)));
  return rounds;
}

void BM_TargetLossFit(benchmark::State& state) {
  TargetLossFit fit;
  for (const RateRound& round : Rounds(static_cast<size_t>(state.range(0)))) fit.OnRound(round);
  TargetLoss result;
  for (auto _ : state)
    benchmark::DoNotOptimize(result = fit.Fit({.budget = 0.3, .min_rtt = Prober::kMinRtt}));
  state.SetLabel(std::string(FitStateName(result.state)) + " of " + std::to_string(result.samples));
}
BENCHMARK(BM_TargetLossFit)->Arg(12)->Arg(144);

void BM_TargetLossRound(benchmark::State& state) {
  const std::vector<RateRound> rounds = Rounds(999);
  TargetLossFit fit;
  size_t i = 0;
  for (auto _ : state) fit.OnRound(rounds[i++ % rounds.size()]);
}
BENCHMARK(BM_TargetLossRound);

}  // namespace
}  // namespace longhaul::transport
