// The target loss l*, computed and not configured (mission A6): from packet-timed rounds, least squares gives the path
// (A), throughput and delay as functions of loss (B), and from the two functions the target (C).
//
//   (A) hinge:  g(s) = (1 - l0) min(s, C)       l0: what the path loses at any rate; C: the bottleneck, in sent bytes
//       For each candidate C among the sorted s, l0 = 1 - sum_{s<=C} s g / sum_{s<=C} s^2; the least squared error wins.
//   (B) recursive least squares with forgetting 0.97 on x = [1, l, l^2]:  T(l) throughput, D(l) delay above min_rtt
//   (C) l* = argmax over [l0, min(budget, l0 + dmax)] of ln T(l) - beta ln(1 + D(l) / min_rtt)
//   guards: fewer than kMinSamples rounds, no excitation (UP and DOWN both needed), ill-conditioned, R^2 < kMinRSquared
//       -> l0 + kFallbackMargin with l0 from rounds below the delivered rate; always clamped to [kMinTarget, kMaxTarget]
//
// Why not loss against throughput alone: loss is an outcome of the rate, so random and self-inflicted loss would mix.
// Pure arithmetic: no clock, no chance, bounded memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "longhaul/units.h"

namespace longhaul::transport {

// What the sender did in a round.
enum class RatePhase : uint8_t { kDown, kCruise, kUp };

// One packet-timed round trip: the packets sent in it and what became of them.
struct RateRound {
  Bandwidth sent;       // s_i: bytes sent over the time of sending them
  Bandwidth delivered;  // g_i: bytes of them acknowledged over the same length of time at the receiver's pace
  double loss = 0;      // l_i: raw, before FEC, 0..1
  double packets = 0;   // how many packets the round had: its weight
  Duration queue{0};    // q_i = srtt - min_rtt
  RatePhase phase = RatePhase::kCruise;
};

enum class FitState : uint8_t { kFewSamples, kNoExcitation, kIllConditioned, kPoorFit, kFitted };
std::string_view FitStateName(FitState state);

struct TargetLoss {
  FitState state = FitState::kFewSamples;
  double target = 0;     // l*
  double floor = 0;      // l0
  Bandwidth capacity;    // C; Zero() when not fitted
  double r_squared = 0;  // of (A)
  int samples = 0;
};

class TargetLossFit {
 public:
  static constexpr int kMinSamples = 12;
  static constexpr double kMinRSquared = 0.3;
  static constexpr double kFallbackMargin = 0.02;
  static constexpr double kMinTarget = 0.005;
  static constexpr double kMaxTarget = 0.15;
  static constexpr double kForgetting = 0.97;

  TargetLossFit();
  ~TargetLossFit();

  // A round trip that the application did not limit.
  void OnRound(const RateRound& round);
  // Everything learned is of another path (migration, a route change).
  void Reset();
  // Once per packet-transmission window, or every few rounds. `budget`: the loss that the windows' semantics afford
  // (tolerated low-priority share plus what FEC repairs), 0..1.
  TargetLoss Fit(double budget, Duration min_rtt) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longhaul::transport
