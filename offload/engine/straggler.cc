#include "offload/engine/straggler.h"

#include <algorithm>

namespace longhaul::offload {
namespace {

void Update(Duration sample, uint32_t samples, Duration& mean, Duration& deviation) {
  if (samples == 0) {
    mean = sample;
    deviation = sample / 2;
    return;
  }
  const Duration off = sample > mean ? sample - mean : mean - sample;
  deviation = (3 * deviation + off) / 4;
  mean = (7 * mean + sample) / 8;
}

}  // namespace

void StragglerClock::OnArrival(uint8_t node, Duration wait) {
  Learned& learned = nodes_[node];
  Update(std::min(wait, kMostWait), learned.samples++, learned.mean, learned.deviation);
  learned.misses = 0;
}

// The true wait is longer than its end, and unknown: the end counts, so that a path that has become slower is
// learned and a node that has become slow is not waited for.
void StragglerClock::OnMiss(uint8_t node) {
  Learned& learned = nodes_[node];
  ++learned.misses;
  if (learned.misses < kDemoteAfter)
    Update(Deadline(learned), learned.samples++, learned.mean, learned.deviation);
}

// An element-wise sum of 8 KB takes 0.1 to 0.4 us and a hop 2 to 5: a multiple of the mean alone is the wrong
// unit, the deviation says what is late.
Duration StragglerClock::Deadline(const Learned& learned) const {
  const Duration late = std::max(learned.mean + learned.mean / 5, learned.mean + 4 * learned.deviation);
  return std::clamp(late, kLeastWait, kMostWait);
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
  if (learned.samples < kLeastSamples) return std::nullopt;
  return Deadline(learned);
}

}  // namespace longhaul::offload
