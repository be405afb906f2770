// Which chunks of a tensor matter: scores, the choice of the high class, and the order of sending.
//
// A chunk's score is its squared L2 norm (one pass, no index bytes on the wire), smoothed over rounds as
// DGT's contribution: c = a * c + (1 - a) * score, so that the class of a chunk does not flap. The top share
// of chunks by score is high, or as many as hold a share of the energy.
//
// Both classes leave in the tensor's order: a chunk's aggregate is final when the last worker's contribution
// is in, so the results overlap the pushes only when all workers send in about the same order, which their
// energies would not give. Low chunks begin at a place that the job's seed and the round decide, the same one
// for every worker, so that it is not always the same part of the tensor that is cut off at the end of a
// window.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "codec/chunk.h"
#include "longhaul/options.h"
#include "longhaul/status.h"

namespace longhaul::codec {

// Energies as 8 bits: 0 is zero, 1..255 are 2^((q - 128) / 2), so a step is a factor of sqrt(2) and the range
// is 2^-63.5 .. 2^63.5. Monotone; values outside are clamped, NaN counts as the largest.
uint8_t QuantizeEnergy(double energy);
double DequantizeEnergy(uint8_t quantized);

// Squared L2 norm.
double ChunkEnergy(std::span<const float> values);

enum class PriorityPolicy : uint8_t {
  kEnergy,      // by score (default)
  kLayerOrder,  // by position: the front of the tensor first
  kExplicit,    // by the scores that the caller gives
  kTopK,        // only the largest elements travel (codec/top_k.h); chunks by the energy of those
};
// "energy", "layer", "topk". Errors: kInvalidArgument naming the policies that exist.
Result<PriorityPolicy> ParsePriorityPolicy(std::string_view name);

struct PriorityOptions {
  PriorityPolicy policy = PriorityPolicy::kEnergy;
  double high_share = 0.2;  // share of chunks in the high class, 0..1; at least one chunk when > 0
  // Above 0 and instead of high_share: the smallest set of chunks (the first ones, with kLayerOrder) that
  // holds this share of the smoothed energy, 0..1.
  double high_energy = 0;
  double smoothing = 0.5;  // a: weight of the past, 0..1
  // Chunks with one of these elements are high, whatever their score. They count towards the share, which is
  // exceeded if they alone are more.
  std::vector<TensorOptions::Range> high_ranges = {};
  // A tensor of at most this many chunks is all high: there is no point in losing part of a bias vector.
  uint32_t all_high_chunks = 4;
  uint64_t seed = 0;  // of the rotation
};

// The outcome for one round.
struct Priorities {
  std::vector<uint32_t> high;          // chunk numbers in sending order
  std::vector<uint32_t> low;           // chunk numbers in sending order
  std::vector<uint8_t> log_energy;     // by chunk number; QuantizeEnergy of this round's energy
  float total_low_energy = 0;          // sum over `low` of the dequantised energies
  std::optional<uint32_t> not_finite;  // first chunk that has NaN or infinity among its values
};

// One tensor's scores over the rounds.
class PriorityClassifier {
 public:
  // REQUIRES: options.high_ranges lie within the tensor.
  PriorityClassifier(const ChunkGeometry& geometry, const PriorityOptions& options);

  // Scores `values` (the tensor) and orders its chunks for this round.
  Priorities Classify(std::span<const float> values, uint64_t round);
  // The same, by the energies of this round's chunks (ChunkEnergy). REQUIRES: energies.size() == chunks().
  Priorities ClassifyEnergies(std::span<const double> energies, uint64_t round);
  // From now on kExplicit: scores by chunk number, higher matters more. REQUIRES: scores.size() == chunks().
  void SetScores(std::span<const double> scores);

  std::span<const double> scores() const { return scores_; }

 private:
  void UpdateScores(std::span<const double> energies, Priorities* result);
  // Of the chunks in order of importance, the first so many are high.
  uint32_t HighCount(std::span<const uint32_t> order) const;
  uint32_t CountByEnergy(std::span<const uint32_t> order) const;

  ChunkGeometry geometry_;
  PriorityOptions options_;
  std::vector<bool> always_high_;  // by chunk
  uint32_t always_high_count_ = 0;
  std::vector<double> energies_;  // by chunk, smoothed
  std::vector<double> scores_;    // by chunk: what orders them
  bool scored_ = false;
};

}  // namespace longhaul::codec
