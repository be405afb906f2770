#include "offload/engine/straggler.h"

#include <algorithm>

namespace longhaul::offload {

void StragglerClock::OnArrival(uint8_t node, Duration wait) {
  nodes_[node].wait.Learn(wait);
  nodes_[node].misses = 0;
}

// The true wait is longer than its end, and unknown: the end counts, so that a path that has become slower is
// learned and a node that has become slow is not waited for.
void StragglerClock::OnMiss(uint8_t node) {
  Learned& learned = nodes_[node];
  if (++learned.misses < kDemoteAfter) learned.wait.Learn(End(learned.wait));
}

// A multiple of the mean alone is the wrong unit where a sum takes less time than a hop: the deviation says
// what is late.
Duration StragglerClock::End(const LearnedWait& wait) {
  return std::max(wait.End(wait.mean() / 5), kLeastWait);
}

std::optional<Duration> StragglerClock::WaitFor(uint8_t node, const JobConfig& job) {
  Learned& learned = nodes_[node];
  switch (job.policy) {
    case StragglerPolicy::kOff:
      return std::nullopt;
    case StragglerPolicy::kSeedSkip:
      return job.skip_after;
    case StragglerPolicy::kLeafDemote:
      if (learned.misses >= kDemoteAfter && ++learned.waits % kProbation != 0) return Duration(0);
      break;
    case StragglerPolicy::kCascade:
      break;
  }
  if (learned.wait.samples() < kLeastSamples) return std::nullopt;
  return End(learned.wait);
}

}  // namespace longhaul::offload
