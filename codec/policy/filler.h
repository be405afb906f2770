// The server's half of a loss policy: what a contribution counts for when it arrives, and what a round's
// chunk amounts to once no contribution to it is awaited any more.
//
// "Bubble filling": a window whose actual loss is above the bubble-filling threshold has its lost chunks
// filled by the policy; below it, a certain loss is tolerated as it is: missing counts as zero in the mean
// over all contributors. Filled or not, a chunk never shifts its neighbours.
//
// One per tensor. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "codec/chunk/chunk.h"
#include "codec/policy/loss_policy.h"

namespace longhaul::codec {

inline constexpr float kStaleDecay = 0.9f;
// ipw: the most that one contribution may count for. Bounds the variance that a very lossy worker brings in,
// at the price of a bias towards zero where more than 3/4 is lost.
inline constexpr float kMaxInverseShare = 4.0f;
// ipw: gain of the average over rounds of the delivered share. Chunks leave the server before their window's
// own share is known, so the estimate is of the rounds before.
inline constexpr double kShareGain = 1.0 / 8;

// Weights of the contributions to one chunk of one round, as declared (not scaled by ipw).
struct ChunkTally {
  double arrived = 0;    // their values are in `sum`
  double tolerated = 0;  // missing, of windows whose loss is at most the threshold
  double filled = 0;     // missing, of windows above it: the policy decides

  double absent = 0;  // of members that are not in this step: their gradients come with steps of their own

  double total() const { return arrived + tolerated + filled; }
};

// Why a chunk's, or a round's, losses were answered as they were. In order of precedence in a round.
enum class FillReason : uint8_t {
  kNoneLost,
  kBelowThreshold,  // tolerated: missing counts as zero
  kAboveThreshold,  // filled by the policy
  kRepaid,          // residual: the workers send it again
  kShifted,         // shift: it counts as what its worker was expected to send
};
// "none_lost", "below_threshold", "above_threshold", "repaid", "shifted".
std::string_view FillReasonName(FillReason reason);
FillReason ReasonFor(LossPolicy policy, const ChunkTally& tally);

class Filler {
 public:
  virtual ~Filler() = default;

  // The factor, beside its weight, with which the sum of a round takes a contribution of this rank.
  virtual float ArrivalScale(uint32_t rank, bool high) const;
  // The rank's window of this round is over: so much of its low class was expected, so much counted. Felt
  // from the next round on. REQUIRES: low_received <= low_count.
  virtual void OnWindowOver(uint32_t rank, uint32_t low_count, uint32_t low_received);

  // mean = what the round's chunk amounts to, from sum = sum of weight x scale x value over what arrived.
  // A mean over all members; the absent ones count as zero.
  // Moves the state on: to be called once per chunk and round. A tally without any weight gives zeros (shift:
  // the expectation). REQUIRES: sum and mean of the chunk's length, in different places.
  virtual void Mean(uint32_t chunk, const ChunkTally& tally, std::span<const float> sum,
                    std::span<float> mean) = 0;

  // A new shift epoch with members of this total weight: C := 0 (codec/policy/shift.h).
  virtual void BeginEpoch(double total_weight);
  // C = sum of weight x shift over the members, by element; a copy. Empty but for shift.
  virtual std::vector<float> shift_sum() const { return {}; }
};

// Throws std::bad_alloc.
std::unique_ptr<Filler> MakeFiller(const JobSpec& spec, const ChunkGeometry& geometry, uint32_t ranks);

}  // namespace longhaul::codec
