#include "bench/learning/consistency.h"

namespace longhaul::bench {
namespace {

constexpr uint32_t kConsistencySeeds = 1;
constexpr double kSlow = 10;
constexpr double kLoss = 0.1;

}  // namespace

std::vector<Scenario> ConsistencyRuns() {
  std::vector<Scenario> runs;
  const auto add = [&runs](Scenario s) {
    for (s.seed = 1; s.seed <= kConsistencySeeds; ++s.seed) runs.push_back(s);
  };
  for (const char* optimizer : {"sgd", "adam"}) {
    for (const int32_t staleness : {0, 3, -1}) {
      Scenario s;
      s.optimizer = optimizer;
      s.staleness = staleness;
      s.policy = "residual";
      add(s);
      if (staleness != 0) {
        s.slow = kSlow;
        add(s);
        s.slow = 1;
      }
      s.loss = kLoss;
      for (const char* policy : {"zero", "count", "stale", "ipw", "residual"}) {
        s.policy = policy;
        add(s);
      }
    }
  }
  return runs;
}

}  // namespace longhaul::bench
