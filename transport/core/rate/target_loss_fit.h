// The target loss l*, computed and not configured (mission A6): from packet-timed rounds, least squares gives
// the path (A), throughput and delay as functions of loss (B), and from the two functions the target (C).
//
//   (A) hinge:  g(s) = (1 - l0) min(s, C)
//       l0: what the path loses at any rate; C: the bottleneck, in sent bytes
//       Least squares weighted by the rounds' packets (transport/core/rate/path_hinge.h).
//   (B) least squares with forgetting 0.97 on x = [1, l, l^2]:  T(l) throughput, D(l) delay above min_rtt
//       The l of a round is what the path loses at its s: l(s) = a + b max(0, 1 - C / s), a and b fitted to
//       the measured losses. The measured l itself is no regressor: chance raises l and lowers g in the same
//       round, so T would fall with any loss. A round's age counts within its phase, since UP is rare.
//   (C) l* = argmax over [l0 + kHeadroom, l0 + min(budget, kMaxOwnLoss)]
//       of ln T(l) - kDelayWeight ln(1 + D(l) / min_rtt)
//       with T at most the plateau (1 - l0) C, and no further than the losses that were seen.
//
// Guards of (A), the first that applies; `state` names it:
//   few_samples      fewer than kMinSamples rounds since the path last changed
//   no_excitation    UP and DOWN are both needed, kMinPhaseRounds each and s apart by kMinExcitation; and
//                    rounds on both sides of the knee: a capacity that no round exceeded is not known
//   poor_fit         R^2 of (A) below kMinRSquared: delivery is no function of the sent rate (C moves, or an
//                    application limits)
//   ill_conditioned  chance explains the knee, or leaves l0 or C too uncertain
// In these cases l0 is the loss of the rounds below the delivered rate (DOWN; CRUISE where there is none),
// capacity zero. Where the peer grants the rate, the rounds are below C by its choice: `granted`, C is the
// grant, as the peer has measured it for all its senders together.
//
// Guards of (B) and (C); `basis` names them, and then the target is l0 + kFallbackMargin:
//   flat_loss        loss does not rise above C: the buffer holds what the probe sends too much, so there is
//                    no T(l)
//   ill_conditioned  (B) has no unique answer
//   bad_curvature    T is convex beyond chance: the quadratic means nothing between the losses seen. (A concave
//                    D is what a short queue gives; it becomes a straight line, and `delay_saturates` says so.)
//
// The target is at least kMinTarget and never below l0 + kHeadroom: a target at or below what the path loses
// by itself would stop the flow for ever. One round's loss scatters about l by sqrt(l (1 - l) / packets): a
// comparison with l* must allow for that.
//
// Not thread-safe. Pure arithmetic: no clock, no chance, bounded memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "longhaul/units.h"
#include "transport/core/rate/round_memory.h"

namespace longhaul::transport {

// One packet-timed round trip: the packets sent in it and what became of them.
struct RateRound {
  Bandwidth sent;       // s_i: bytes sent over the time of sending them
  Bandwidth delivered;  // g_i: bytes of them acknowledged over the same length of time at the receiver's pace
  double loss = 0;      // l_i: raw, before FEC, 0..1
  double packets = 0;   // how many packets the round had: its weight
  Duration queue{0};    // q_i = srtt - min_rtt
  RatePhase phase = RatePhase::kCruise;
};

enum class FitState : uint8_t {
  kFewSamples,
  kNoExcitation,
  kIllConditioned,
  kPoorFit,
  kGranted,
  kFitted,
};
std::string_view FitStateName(FitState state);

// By what l* was chosen.
enum class TargetBasis : uint8_t { kFloor, kFlatLoss, kIllConditioned, kBadCurvature, kCurves };
std::string_view TargetBasisName(TargetBasis basis);

struct TargetLoss {
  FitState state = FitState::kFewSamples;
  TargetBasis basis = TargetBasis::kFloor;
  double target = 0;     // l*
  double floor = 0;      // l0
  Bandwidth capacity;    // C; Zero() when neither fitted nor granted
  double r_squared = 0;  // of (A), 0..1
  int samples = 0;       // rounds remembered: down + cruise + up
  int down = 0;
  int cruise = 0;
  int up = 0;
  bool delay_saturates = false;  // D was concave: the queue is full at the first loss
  uint64_t path_changes = 0;     // how often older rounds were forgotten because newer ones contradicted them
};

// What the fit has to know beside the rounds.
struct FitContext {
  double budget = 0;  // the loss beyond l0 that the job affords, 0..1
  Duration min_rtt{0};
  // The peer's, zero when there is none: it stands for C where no round has exceeded what the path has.
  Bandwidth grant = {};
  std::optional<double> floor =
      {};  // l0 as experiments have shown it (path_loss.h): a hinge with another one is none
};

class TargetLossFit {
 public:
  static constexpr int kMinSamples = 12;          // four per parameter of (B)
  static constexpr int kMinPhaseRounds = 3;       // so that one outlier of a phase is outvoted
  static constexpr double kMinExcitation = 1.1;   // mean s of UP over mean s of DOWN; designed: 1.25 / 0.9
  static constexpr double kMinRSquared = 0.3;     // of the yields' variation, binomial noise left out
  static constexpr double kMinSignificance = 12;  // of the knee, as PathHinge has it: about three deviations
  static constexpr double kMaxFloorError = 0.02;  // standard errors; half of what a user of them may be off
  static constexpr double kMaxCapacityError = 0.05;  // as a share of C
  static constexpr double kFallbackMargin = 0.02;    // the draft's LossThresh above l0
  static constexpr double kHeadroom = 0.01;  // at l0 itself every second round would be above the target
  static constexpr double kMaxOwnLoss =
      0.05;  // a quarter of what UP's quarter loses without a queue, 1 - 1 / 1.25
  // beta. 1 is Kleinrock's power T / D; bulk transfers gain more by throughput than they suffer by a queue.
  static constexpr double kDelayWeight = 0.5;
  static constexpr double kMinTarget = 0.005;  // 1 packet of 200: a round cannot distinguish less from chance
  static constexpr double kForgetting = 0.97;  // per round of a phase: half after 23

  TargetLossFit();
  ~TargetLossFit();

  // A round trip without a pause, whatever limited its rate. Rounds without packets or rates are ignored.
  void OnRound(const RateRound& round);
  // Everything learned is of another path (migration, a route change).
  void Reset();
  // Once per packet-transmission window, or every few rounds.
  TargetLoss Fit(const FitContext& context) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longhaul::transport
