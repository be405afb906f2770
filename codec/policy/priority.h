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

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/zeroed_array.h"
#include "codec/chunk/chunk.h"
#include "longhaul/job.h"
#include "longhaul/options.h"

namespace longhaul::codec {

// Energies as 8 bits: 0 is zero, 1..255 are 2^((q - 128) / 2), so a step is a factor of sqrt(2) and the range
// is 2^-63.5 .. 2^63.5. Monotone; values outside are clamped, NaN counts as the largest.
uint8_t QuantizeEnergy(double energy);
double DequantizeEnergy(uint8_t quantized);

// Squared L2 norm.
double ChunkEnergy(std::span<const float> values);
// Whether a sum of squares is within float's range; else ChunkEnergy adds once more, in double.
inline bool FitsFloat(float energy) { return energy > 1e-30f && energy < 1e38f; }

struct PriorityOptions {
  Priority policy = Priority::kEnergy;  // kTopK ranks as kEnergy, by what travels (codec/chunk/top_k.h)
  double high_share = 0.2;  // share of chunks in the high class, 0..1; at least one chunk when > 0
  // Above 0 and instead of high_share: the smallest set of chunks (the first ones, with kLayer) that
  // holds this share of the smoothed energy, 0..1.
  double high_energy = 0;
  // Below 1: the class is larger than these two say where else more than this share of the smoothed energy
  // would be lost, 0..1, at the loss of ExpectLoss.
  double lost_energy = 1;
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

// One tensor's scores over the rounds. A round goes in steps, so that a large tensor never takes long at
// once:
//
//   Begin(round)    Score(chunk, energy) for every chunk    while (!Rank(so many chunks)) ...    Take()
//
// The high class is found by radix selection over the scores' bits, a byte a pass: O(chunks) in steps of any
// size, where a sort of 200,000 chunks takes 30 ms.
class PriorityClassifier {
 public:
  // REQUIRES: options.high_ranges lie within the tensor.
  PriorityClassifier(const ChunkGeometry& geometry, const PriorityOptions& options);

  void Begin(uint64_t round);
  // The energy of this round's chunk (ChunkEnergy); returns it quantised. A round that is begun anew before
  // the first Rank leaves no trace. REQUIRES: every chunk once, in order.
  uint8_t Score(uint32_t chunk, double energy);
  // Looks at no more than `chunks` chunks (>= 1). True when the ranking is complete.
  bool Rank(uint32_t chunks);
  Priorities Take() { return std::move(ranking_.result); }

  // The same at once, by the energies of this round's chunks, or by the values of the tensor.
  Priorities ClassifyEnergies(std::span<const double> energies, uint64_t round);
  Priorities Classify(std::span<const float> values, uint64_t round);

  // From now on in place of the policy: the score of a chunk, not negative; higher matters more. Zero for
  // chunks without.
  void SetScore(uint32_t chunk, double score);

  // Share of the low class's chunks that will be lost, 0..1: from the next Rank on.
  void ExpectLoss(double share) { loss_ = share; }

  // Smoothed, by chunk.
  std::span<const double> energies() const { return energies_.span(); }

 private:
  static constexpr int kDigitBits = 8;
  static constexpr size_t kDigits = 1u << kDigitBits;
  // Chunks whose scores agree in the digits looked at so far, by their next digit.
  struct Bucket {
    uint32_t count = 0;
    double energy = 0;
  };
  // The last chunk of the high class: those with a larger key are high, and of those with the same key the
  // first ones until both `count` and `energy` are reached.
  struct Cut {
    bool Reached(double energy, uint32_t count) const {
      return energy >= energy_wanted && count >= count_wanted;
    }
    double energy_wanted = 0;  // of the chunks that no range makes high
    double energy_held = 0;    // by chunks above the digits chosen so far
    uint32_t count_wanted = 0;
    uint32_t count_held = 0;
    uint64_t key = 0;  // its high digits, as far as they are chosen
    int shift = 64;    // of the digits chosen so far
  };
  struct Ranking {
    uint64_t round = 0;
    uint32_t scored = 0;
    double energy = 0;         // smoothed, of all chunks
    double always_energy = 0;  // of those that a range makes high
    uint32_t next = 0;         // chunk, within this pass
    bool selected = false;     // the cut is known: this pass fills the classes
    Cut cut;
    std::array<Bucket, kDigits> buckets;
    uint32_t turn = 0;               // where the low class begins
    std::vector<uint32_t> low_last;  // low chunks before `turn`
    double low_energy = 0;
    Priorities result;
  };

  uint64_t Key(uint32_t chunk) const;
  void BeginSelection();
  // Share of the energy that the high class has to hold.
  double EnergyWanted() const;
  // Another pass is needed, with the next digit.
  void BeginPass();
  void Count(uint32_t chunk);
  void ChooseDigit();
  bool IsHigh(uint32_t chunk);
  void Place(uint32_t chunk);

  ChunkGeometry geometry_;
  PriorityOptions options_;
  std::vector<bool> always_high_;  // by chunk
  uint32_t always_high_count_ = 0;
  ZeroedArray<double> energies_;  // by chunk, smoothed
  ZeroedArray<double> scored_;    // the same with this round's, which counts once all chunks are scored
  std::vector<double> explicit_scores_;
  double loss_ = 0;        // expected, of the low class
  bool smoothed_ = false;  // energies_ has a past
  Ranking ranking_;
};

// In which order the tensors of a job leave, both ways: first layers first.

// Priority of a tensor's windows, lower leaves first: by the tensor's own priority (clamped to 16 bits),
// among equals those declared first. Keys are given in the order of declarations; those beyond 65,535 are
// equal.
constexpr int32_t SendOrder(int32_t priority, uint32_t key) {
  const int32_t rank = std::clamp<int32_t>(priority, INT16_MIN, INT16_MAX);
  return rank * 65'536 + static_cast<int32_t>(std::min<uint32_t>(key, UINT16_MAX));
}

}  // namespace longhaul::codec
