// Keeps contributions out of a tensor's sum that would ruin it: NaN, infinity and what would overflow the sum
// always, and norms far above the usual ones where the operator wants that.
//
// A chunk's energy is the sum of its squares, times the square of the weight that it counts with: what it
// moves the model by. What is usual is learned: an average of the energies that were
// accepted, per chunk position and over all ranks, and their mean over the whole tensor. A chunk is too large
// when its norm exceeds `factor` times both: position alone would refuse the first gradient of a part that
// had none for a while (an embedding's rare rows), the tensor alone would refuse a bias among small weights.
//
// Under a policy that repays, a contribution may bring what its rank could not deliver in the rounds before.
// The norm of a sum of n gradients is at most n times the largest of them: the bound is n times as high for a
// rank whose chunk was not settled in the last n - 1 rounds, n <= kMostGradients. Only single gradients teach
// what is usual. A rank that stays silent to bring much at once brings no more than it could have before.
//
// Refusing ends, in two ways. What was refused is gone: no policy sends it again (docs/decisions/0013). And a
// level that everybody has reached becomes the usual one: after kGivesWay refusals in a row at a position,
// with nothing accepted between, the usual norm there is `factor` times what it was (twice at least). A
// single worker among others cannot bring that about.
//
// Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace longhaul::server {

class ContributionGuard {
 public:
  enum class Verdict : uint8_t { kOk, kNotFinite, kOverflows, kTooLarge };

  // Accepted contributions to a chunk position before it can be judged, and the weight of a new one in the
  // average after them.
  static constexpr uint8_t kLearned = 8;
  static constexpr double kNewShare = 1.0 / 16;
  static constexpr uint8_t kGivesWay = 8;  // refusals in a row: as many as kLearned, which taught the level
  static constexpr double kLeastStep = 2;  // of the norm, so that a factor of 1 gives way too
  // A larger debt is judged as one of so many gradients: the step that one contribution can make is bounded.
  static constexpr uint32_t kMostGradients = 64;

  // factor: 0 = norms are not judged (and nothing is stored for it), else >= 1. repays: what was not settled
  // comes again (codec::Repays).
  ContributionGuard(uint32_t chunks, uint32_t ranks, double factor, bool repays = false);

  // The rank is another worker's from this round on: it owes nothing of rounds before.
  void OnMember(uint32_t rank, uint64_t round);

  // A rank's window is new: nothing of it was refused.
  void BeginWindow(uint32_t rank) { windows_[rank] = {}; }
  // Whether `scale` times the values may be added in this round; settled it is either way. What is accepted
  // is learned from, so call it once for what is added. After something that is not finite everything of the
  // window is refused: the rest comes from the same computation. kOverflows: the sum over all ranks could
  // become infinite. REQUIRES: rank and chunk in range, rounds never decrease.
  // weight: of `scale`, the part that says how much of the model this rank stands for.
  Verdict Check(uint32_t rank, uint32_t chunk, std::span<const float> values, float scale = 1,
                uint64_t round = 0, float weight = 1);

  // Chunks of the rank's window that were refused.
  uint32_t refused(uint32_t rank) const { return windows_[rank].refused; }
  // Of the chunk that was refused last as too large: its norm by the larger of the two usual ones.
  double last_excess() const { return last_excess_; }

 private:
  struct Window {
    uint32_t refused = 0;
    bool not_finite = false;
  };
  struct Usual {
    float energy = 0;      // average
    uint8_t accepted = 0;  // up to kLearned
    uint8_t refused = 0;   // in a row
  };
  // Gradients that a contribution of this round may be the sum of; it settles them.
  uint32_t SettleGradients(uint32_t rank, uint32_t chunk, uint64_t round);
  bool FitsSum(std::span<const float> values, double energy, float scale) const;
  bool IsTooLarge(uint32_t chunk, double energy);
  void Learn(uint32_t chunk, double energy);
  void GiveWay(uint32_t chunk);
  double Reference(const Usual& usual) const {
    return std::max(static_cast<double>(usual.energy), usual_sum_ / usual_count_);
  }
  void SetUsual(Usual& usual, double energy);

  const double factor_;
  std::vector<Window> windows_;  // by rank
  std::vector<Usual> usual_;     // by chunk; empty without a factor
  // By rank and chunk: the first round that is not settled. Empty without a factor, or when nothing is
  // repaid.
  std::vector<uint32_t> unsettled_;
  double usual_sum_ = 0;  // over chunks that have accepted anything
  uint32_t usual_count_ = 0;
  double last_excess_ = 0;
};

// For messages: "ok", "not finite", "overflows", "too large".
const char* GuardVerdictName(ContributionGuard::Verdict verdict);

}  // namespace longhaul::server
