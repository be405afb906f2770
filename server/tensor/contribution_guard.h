// Keeps contributions out of a tensor's sum that would ruin it: NaN, infinity and what would overflow the sum
// always, and norms far above the others' usual ones where the operator wants that.
//
// A chunk's energy is the sum of its squares, times the square of the weight that it counts with: what it
// moves the model by. What is usual is learned of every rank by itself: an average of the energies that were
// accepted, per chunk position, and their mean over the tensor. A chunk is too large when its norm exceeds
// `factor` times both lower medians over the *other* ranks, at the position and over the tensor: position
// alone would refuse the first gradient of a part that had none for a while (an embedding's rare rows), the
// tensor alone would refuse a bias among small weights. So a rank's own pushes never raise its bound, however
// slowly they grow, and fewer than half of the others that agree with it do not either. A rank without others
// is judged by its own.
//
// A position is judged when two others are known there, or after kLearned contributions. In the first round a
// rank that comes before two others have pushed is not judged: what is summed as it arrives cannot be taken
// back.
//
// Under a policy that repays, a contribution may bring what its rank could not deliver in the rounds before.
// The norm of a sum of n gradients is at most n times the largest of them: the bound is n times as high for a
// rank whose chunk was not settled in the last n - 1 rounds, n <= kMostGradients. Only single gradients teach
// what is usual. A rank that stays silent to bring much at once brings no more than it could have before.
//
// Refusing ends, in two ways. What was refused is gone: no policy sends it again (docs/decisions/0013). And a
// level that all workers have reached becomes the usual one: after refusals in kGivesWay rounds in a row at a
// position, with nothing accepted between, the usual norm there is `factor` times what it was (twice at
// least). Workers that push more often or earlier than others cannot bring that about: as long as one honest
// gradient a round comes to that position, it begins anew.
//
// Memory with a factor: 4 bytes for each chunk and rank (touched when it pushes), 8 where a policy repays.
// Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/zeroed_array.h"

namespace longhaul::server {

class ContributionGuard {
 public:
  enum class Verdict : uint8_t { kOk, kNotFinite, kOverflows, kTooLarge };

  // Accepted contributions to a chunk position before it can be judged by one other rank, or by its own.
  static constexpr uint8_t kLearned = 8;
  static constexpr double kNewShare = 1.0 / 8;  // of a contribution in what is usual of its rank
  static constexpr uint8_t kGivesWay = 8;  // rounds in a row: as many as kLearned, which taught the level
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
  struct Position {
    uint8_t accepted;  // of all ranks, up to kLearned
    uint8_t refused;   // rounds in a row
    uint32_t round;    // 1 + the last round with a refusal; 0: none
  };
  // Of a rank over the positions that it has pushed something other than zeros to.
  struct Total {
    double energy = 0;
    uint32_t positions = 0;
  };

  // Gradients that a contribution of this round may be the sum of; it settles them.
  uint32_t SettleGradients(uint32_t rank, uint32_t chunk, uint64_t round);
  bool FitsSum(std::span<const float> values, double energy, float scale) const;
  bool IsTooLarge(uint32_t rank, uint32_t chunk, double energy);
  void Learn(uint32_t rank, uint32_t chunk, double energy);
  void NoteRefusal(uint32_t rank, uint32_t chunk, uint64_t round);
  void GiveWay(uint32_t rank, uint32_t chunk);
  // What is usual for the others; 0: not known well enough.
  double Reference(uint32_t rank, uint32_t chunk);
  // Lower median over the ranks but this one of what is known; 0: nothing is.
  template <typename Usual>
  double MedianOfOthers(uint32_t rank, const Usual& usual);
  float& usual(uint32_t rank, uint32_t chunk) { return usual_[rank * positions_.size() + chunk]; }
  void SetUsual(uint32_t rank, uint32_t chunk, double energy);

  const double factor_;
  std::vector<Window> windows_;      // by rank
  ZeroedArray<Position> positions_;  // by chunk; empty without a factor
  ZeroedArray<float> usual_;         // average energy by rank and chunk; 0: not known
  std::vector<Total> totals_;        // by rank
  // By rank and chunk: the first round that is not settled, when it is later than the rank's first. Empty
  // without a factor, or when nothing is repaid.
  ZeroedArray<uint32_t> unsettled_;
  std::vector<uint32_t> first_rounds_;  // by rank: of this member
  std::vector<double> known_;           // scratch
  double last_excess_ = 0;
};

// For messages: "ok", "not finite", "overflows", "too large".
const char* GuardVerdictName(ContributionGuard::Verdict verdict);

}  // namespace longhaul::server
