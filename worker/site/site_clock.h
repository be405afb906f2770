// What a site's threads take from outside: the time, and numbers that no predecessor had.
#pragma once

#include <chrono>
#include <random>

#include "base/instant.h"

namespace longhaul::site {

// Of the device: collectives of ranks and relay. Programs that use the site's device themselves take others.
inline constexpr uint16_t kSiteJob = 0x5349;

inline Instant Now() {
  return Instant::FromNanoseconds(std::chrono::steady_clock::now().time_since_epoch().count());
}

inline uint64_t NewSession() {
  std::random_device entropy;
  return uint64_t{entropy()} << 32 | entropy();
}

}  // namespace longhaul::site
