#include "bench/learning/poisoned.h"

namespace longhaul::bench {
namespace {

constexpr uint32_t kPoisonedSeeds = 2;

struct Defence {
  const char* label;
  const char* aggregation;
  double max_weight_share;
  double norm_guard;
};
constexpr Defence kDefences[] = {
    {"mean, weights as they are said", "mean", 1, 0},      {"mean, weights bounded (default)", "mean", 0, 0},
    {"mean, weights bounded, norm guard 3", "mean", 0, 3}, {"trimmed mean", "trimmed-mean", 0, 0},
    {"centred clipping", "centred-clipping", 0, 0},
};

struct Attack {
  const char* label;
  const char* name;
  uint32_t liars;
};
constexpr Attack kAttacks[] = {
    {"none", "flip", 0},
    {"-g", "flip", 2},
    {"-10 g", "scale", 2},
    {"-g, weight 1e9", "weight", 2},
};

}  // namespace

std::vector<PoisonedRun> PoisonedRuns() {
  std::vector<PoisonedRun> runs;
  for (const double skew : {0.0, 0.9}) {
    for (const Defence& defence : kDefences) {
      for (const Attack& attack : kAttacks) {
        Scenario s;
        s.policy = "count";
        s.rounds = 200;
        s.skew = skew;
        s.liars = attack.liars;
        s.attack = attack.name;
        s.aggregation = defence.aggregation;
        s.norm_guard = defence.norm_guard;
        s.max_weight_share = defence.max_weight_share;
        for (s.seed = 1; s.seed <= kPoisonedSeeds; ++s.seed) runs.push_back({defence.label, attack.label, s});
      }
    }
  }
  return runs;
}

}  // namespace longhaul::bench
