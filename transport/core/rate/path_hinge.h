// The path model (A) of target_loss_fit.h: weighted least squares of the hinge  g(s) = (1 - l0) min(s, C).
//
// A round of n packets has binomial noise of variance s^2 l (1 - l) / n in g. So the weights are n / s^2, and
// what is fitted is the yield g / s: 1 - l0 below the knee, (1 - l0) C / s above it. R^2 is of the yield too:
// g itself follows s on any path whose rate the sender follows, so it would correlate even where no C exists.
//
// Every gap between neighbouring s is tried for C: below it, 1 - l0 is the mean yield; above it, (1 - l0) C
// is free, and C is kept inside the gap. With running sums that is O(n log n) in all. Pure arithmetic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace longhaul::transport {

struct YieldSample {
  double sent = 0;     // s, any unit of rate, > 0
  double yield = 0;    // g / s
  double packets = 0;  // > 0
};

struct PathHinge {
  double floor = 0;     // l0, 0..1
  double capacity = 0;  // C, in the unit of s
  // Share of the yields' variation that the hinge explains, binomial noise left out of both, 0..1.
  double r_squared = 0;
  double noise = 0;  // variance of one packet's yield: binomial, or what the residuals say if that is more
  double floor_error = 0;     // standard error of l0
  double capacity_error = 0;  // standard error of C as a share of C
  // How far the knee stands out: what the hinge explains beyond a constant yield, over `noise`. A knee that
  // is not there explains 2 or so by chance.
  double significance = 0;
  int below = 0;  // samples with s <= C
  int above = 0;

  double Yield(double sent) const { return (1 - floor) * (sent <= capacity ? 1 : capacity / sent); }
};

// Sorts `samples` by s. `usable` is false when there is no knee to see: fewer than two samples below or above
// it, or nothing arrives.
struct HingeResult {
  bool usable = false;
  PathHinge hinge;
};
HingeResult FitHinge(std::vector<YieldSample>* samples);

}  // namespace longhaul::transport
