// Divides a rate between claims by weight: weighted max-min fairness ("water-filling").
//
//   share_i = clamp(level * weight_i, floor_i, ceiling_i),  the level as high as the capacity allows
//
// What one claim cannot use (its ceiling) goes to the others in proportion to their weights. The sum of the
// shares is never above the capacity: floors that do not fit are scaled down together.
#pragma once

#include <span>
#include <vector>

#include "longhaul/units.h"

namespace longhaul::server {

struct Claim {
  double weight = 1;                     // >= 0
  Bandwidth floor = {};                  // at least this ...
  Bandwidth ceiling = Bandwidth::Max();  // ... and at most this, which wins over the floor
};

// Shares in the order of the claims. Monotone: more capacity is no smaller share for anyone.
std::vector<Bandwidth> WaterFill(Bandwidth capacity, std::span<const Claim> claims);

}  // namespace longhaul::server
