// What a missing low-priority contribution counts as: the fill policy of a job.
//
// "Bubble filling": a window whose actual loss is above the bubble-filling threshold has its lost chunks
// filled by the policy; below it, a certain loss is tolerated as it is: missing counts as zero in the mean
// over all contributors. Filled or not, a chunk never shifts its neighbours.
//
// One policy owns both halves of the answer, what the server fills and whether the worker repays, so that the
// same loss is never compensated twice: `residual` repays at the worker and therefore fills with zero.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "codec/filler.h"
#include "longhaul/status.h"

namespace longhaul::codec {

enum class FillPolicy : uint8_t {
  kZero,      // missing = 0
  kCount,     // mean over those that arrived
  kStale,     // the chunk's previous mean, times kStaleDecay
  kResidual,  // missing = 0 now; the worker adds what was lost to its next gradient
};

std::string_view FillPolicyName(FillPolicy policy);
// Errors: kInvalidArgument naming the policies that exist (and, for ipw and shift, that they do not yet).
Result<FillPolicy> ParseFillPolicy(std::string_view name);
// The worker keeps what was lost and sends it again with a later gradient.
bool WorkerRepays(FillPolicy policy);

// mean = what the round's chunk amounts to, from sum = the weighted sum of what arrived.
//   sum, mean: the chunk's elements (may be the same memory)
//   previous: the chunk's mean of the round before; only read by kStale, empty = zeros
// A tally without any weight gives zeros. REQUIRES: equal sizes.
void FillMean(FillPolicy policy, const ChunkTally& tally, std::span<const float> sum,
              std::span<const float> previous, std::span<float> mean);

}  // namespace longhaul::codec
