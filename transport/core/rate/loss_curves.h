// Throughput and delay as functions of loss, (B) of target_loss_fit.h, and the loss that (C) chooses from
// them.
//
// T must be concave and D convex. A T that is convex beyond chance is no throughput of a bottleneck: the
// curves are not usable. A D that is concave is the rule, not an exception: a drop-tail queue shorter than
// the probe is full at the first loss and cannot grow. So D's curvature is constrained to zero and above,
// which makes it the straight line of least squares there. (Refusing it instead left 90 % of simulated paths
// with a queue below half a round trip without a fitted target.)
#pragma once

#include <array>
#include <span>
#include <vector>

#include "transport/core/rate/path_hinge.h"
#include "transport/core/rate/round_memory.h"

namespace longhaul::transport {

// A round with its weight in the curves: packets, faded by age.
struct WeightedRound {
  const RememberedRound* round = nullptr;
  double weight = 0;
};

// c0 + c1 u + c2 u^2 of u = (l - first) / (last - first), the share of the way through the losses seen.
struct Quadratic {
  std::array<double, 3> c{};
  double At(double u) const { return c[0] + u * (c[1] + u * c[2]); }
};

struct LossCurves {
  enum class Verdict { kUsable, kFlat, kIllConditioned, kBadCurvature };
  Verdict verdict = Verdict::kFlat;
  double first = 0;              // loss below the knee
  double last = 0;               // loss at the highest rate
  Quadratic throughput;          // T, as a share of the plateau (1 - l0) C
  Quadratic delay;               // D, s
  bool delay_saturates = false;  // D is concave beyond chance and was fitted by a straight line
};

LossCurves FitLossCurves(const PathHinge& hinge, std::span<const WeightedRound> rounds);

// argmax of ln T - delay_weight ln(1 + D / min_rtt) over the losses from `low` to `high`, no further than the
// losses seen; `low` when that leaves nothing.  min_rtt: s, > 0. REQUIRES: curves.verdict is kUsable.
double BestLoss(const LossCurves& curves, double low, double high, double delay_weight, double min_rtt);

}  // namespace longhaul::transport
