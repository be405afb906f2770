#include "transport/core/rate/path_hinge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace longhaul::transport {
namespace {

// Weighted sums over a run of samples. With x = 1 / s the model above the knee is yield = P x.
struct Sums {
  double n = 0, y = 0, yy = 0, xy = 0, xx = 0;

  void Add(const YieldSample& sample, double x, double sign) {
    const double w = sign * sample.packets;
    n += w;
    y += w * sample.yield;
    yy += w * sample.yield * sample.yield;
    xy += w * sample.yield * x;
    xx += w * x * x;
  }
};

struct Candidate {
  double error = std::numeric_limits<double>::infinity();
  double level = 0;  // 1 - l0
  double capacity = 0;
  double packets_below = 0;
  double xx_above = 0;
  size_t below = 0;
};

// The best hinge whose knee lies between two neighbours, lower <= C <= upper.
Candidate KneeBetween(const Sums& below, const Sums& above, double lower, double upper) {
  Candidate c;
  c.level = below.y / below.n;
  if (c.level <= 0 || above.xx <= 0) return c;
  c.capacity = std::clamp(above.xy / above.xx / c.level, lower, upper);
  const double plateau = c.level * c.capacity;
  c.error =
      (below.yy - c.level * below.y) + (above.yy - 2 * plateau * above.xy + plateau * plateau * above.xx);
  c.packets_below = below.n;
  c.xx_above = above.xx;
  return c;
}

PathHinge Describe(const Candidate& best, const Sums& all, size_t count) {
  PathHinge h;
  h.floor = std::clamp(1 - best.level, 0.0, 1.0);
  h.capacity = best.capacity;
  h.below = static_cast<int>(best.below);
  h.above = static_cast<int>(count - best.below);
  const double residual = std::max(best.error, 0.0);
  const double total = std::max(all.yy - all.y * all.y / all.n, residual);
  const double freedom = static_cast<double>(count) - 2;
  const double binomial = h.floor * (1 - h.floor);
  // A path that lost nothing so far may still lose one packet in so many.
  h.noise = std::max({binomial, residual / freedom, 1 / all.n});
  const double by_chance = std::min(binomial * freedom, residual);
  h.r_squared = total > by_chance ? 1 - (residual - by_chance) / (total - by_chance) : 0;
  h.significance = (total - residual) / h.noise;
  h.floor_error = std::sqrt(h.noise / best.packets_below);
  const double plateau_error = std::sqrt(h.noise / best.xx_above) / (best.level * best.capacity);
  h.capacity_error = std::hypot(h.floor_error / best.level, plateau_error);
  return h;
}

}  // namespace

HingeResult FitHinge(std::vector<YieldSample>* samples) {
  std::ranges::sort(*samples, {}, &YieldSample::sent);
  const size_t count = samples->size();
  if (count < 4) return {};
  // Rates relative to the middle one, so that the sums stay near 1 whatever the unit is.
  const double unit = (*samples)[count / 2].sent;
  LH_CHECK_OP(samples->front().sent, >, 0);
  Sums all;
  for (const YieldSample& s : *samples) all.Add(s, unit / s.sent, 1);

  Candidate best;
  Sums below;
  Sums above = all;
  for (size_t i = 0; i + 2 < count; ++i) {
    const YieldSample& s = (*samples)[i];
    below.Add(s, unit / s.sent, 1);
    above.Add(s, unit / s.sent, -1);
    if (i == 0) continue;
    Candidate c = KneeBetween(below, above, s.sent / unit, (*samples)[i + 1].sent / unit);
    c.below = i + 1;
    if (c.error < best.error) best = c;
  }
  if (best.below == 0) return {};
  LH_CHECK(best.below >= 2 && best.below + 2 <= count);
  LH_CHECK_OP(best.capacity, >, 0);
  HingeResult result{true, Describe(best, all, count)};
  result.hinge.capacity *= unit;
  return result;
}

}  // namespace longhaul::transport
