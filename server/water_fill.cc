#include "server/water_fill.h"

#include <algorithm>
#include <cmath>

namespace longhaul::server {
namespace {

struct Bounds {
  double low = 0;
  double high = 0;
};

double Total(std::span<const Claim> claims, std::span<const Bounds> bounds, double level) {
  double total = 0;
  for (size_t i = 0; i < claims.size(); ++i) {
    total += std::clamp(level * claims[i].weight, bounds[i].low, bounds[i].high);
  }
  return total;
}

}  // namespace

std::vector<Bandwidth> WaterFill(Bandwidth capacity, std::span<const Claim> claims) {
  const auto available = static_cast<double>(capacity.bits_per_second());
  std::vector<Bounds> bounds(claims.size());
  double floors = 0;
  for (size_t i = 0; i < claims.size(); ++i) {
    bounds[i].high = std::min(available, static_cast<double>(claims[i].ceiling.bits_per_second()));
    bounds[i].low = std::min(bounds[i].high, static_cast<double>(claims[i].floor.bits_per_second()));
    floors += bounds[i].low;
  }
  if (floors > available) {
    for (Bounds& b : bounds) b.low = b.high = b.low * (available / floors);
  }
  // The level at which everyone with a weight has its ceiling, or the whole capacity, is high enough.
  double high = 0;
  for (size_t i = 0; i < claims.size(); ++i) {
    if (claims[i].weight > 0) high = std::max(high, bounds[i].high / claims[i].weight);
  }
  double low = 0;
  if (Total(claims, bounds, high) > available) {
    // The total grows with the level: halve the interval until a double knows no number in between.
    for (int step = 0; step < 100; ++step) {
      const double middle = low + (high - low) / 2;
      (Total(claims, bounds, middle) > available ? high : low) = middle;
    }
  } else {
    low = high;
  }
  std::vector<Bandwidth> shares;
  shares.reserve(claims.size());
  for (size_t i = 0; i < claims.size(); ++i) {
    const double share = std::clamp(low * claims[i].weight, bounds[i].low, bounds[i].high);
    shares.push_back(Bandwidth::BitsPerSecond(static_cast<int64_t>(std::floor(share))));
  }
  return shares;
}

}  // namespace longhaul::server
