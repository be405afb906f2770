// What the workers' weights count as in the rounds of one tensor. A weight may differ from push to push, and
// how much it counts is the server's to bound: no member has more of a round's sum than its share, by what
// the others usually push, and none has more of many rounds.
//
// Rank i stands for s_i workers (1, or what the operator admitted it for). With K = `times`, and S the
// workers that the round's members stand for, its share is that of s_i workers with K times the others'
// weight:
//
//   c_i = K s_i / (S - s_i + K s_i)
//
//   u_j    what rank j usually says: at first what it said at its join, then its first push, then an average
//   r      the lower median of u_j / s_j over the members, each as often as it stands for workers: fewer than
//          half of the workers do not move it, whatever they say together
//   v_j    min(u_j, K s_j r), and no more than c_j of the sum over all v
//   b_i  = min(K s_i r, c_i / (1 - c_i) x (sum of v_j over the others))
//   x_i    what rank i has had beyond its share: x_i := max(0, x_i + counted - c_i x the round's sum)
//
//   a push counts as min(what it says, max(b_i - x_i, b_i / K))
//
// In a round in which the others push what they usually do, i's share is c_i at most. Where they push less it
// may be more, and that is paid back by i's next pushes, which count as an average other's at least: a liar
// that falls silent must not silence the others. Over any number of rounds in a row rank i counts as c_i of
// their sums and at most 1 + 8 / K of its b_i more (8: the memory of what is usual). Several that lie
// together count as K s_i r each. What is saved in one round is not spent in another. Weights that stay
// within a factor of K are never cut.
//
// The bounds of a round are fixed before it begins: nothing depends on the order of arrival. Knows no values.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace longhaul::server {

class WeightLedger {
 public:
  static constexpr double kNewShare = 1.0 / 8;  // of a push in what is usual: eight rounds are its memory

  // times: K, >= 1; infinite: weights count as they are said. stands_for: by rank, each >= 1. fixed: weights
  // do not change between two Begins (policy shift), nothing is learned from pushes.
  WeightLedger(double times, std::vector<uint32_t> stands_for, bool fixed = false);

  // What the rank usually says, before its first push.
  void Expect(uint32_t rank, double weight) { of_[rank].usual = weight; }
  // A round begins with these members, by rank.
  void Begin(const std::vector<bool>& members);
  // What a push of this round that says so much counts as; the rank may push again in it.
  float Count(uint32_t rank, float said);
  // What a member that does not push would have counted as.
  float Expected(uint32_t rank) const;
  // The round is over. Its shares, by rank: of the sum of what was counted; zeros without a push.
  const std::vector<double>& End();

  // c of a rank among members that stand for so many workers, itself included.
  static double Share(double times, double stands_for, double all);

 private:
  struct OfRank {
    double stands_for = 1;
    double usual = 1;    // u
    double excess = 0;   // x
    double counted = 0;  // in this round; 0: no push
    double said = 0;
    double bound = std::numeric_limits<double>::infinity();  // b
    bool pushed = false;                                     // ever
  };
  // r, and the v of all members by what they usually say.
  double Median(const std::vector<bool>& members) const;
  std::vector<double> Fair(const std::vector<bool>& members, double median, double all) const;
  void Learn(OfRank& of, double total, double all) const;

  double times_;
  bool fixed_;
  std::vector<OfRank> of_;  // by rank
  std::vector<double> shares_;
};

}  // namespace longhaul::server
