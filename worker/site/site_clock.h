// What a site's threads take from outside: the time, and numbers that no predecessor had.
#pragma once

#include <chrono>
#include <random>

#include "base/instant.h"

namespace longhaul::site {

inline Instant Now() {
  return Instant::FromNanoseconds(std::chrono::steady_clock::now().time_since_epoch().count());
}

// Orders processes that hold a rank one after the other, on machines whose clocks are about right. ns since
// 1970.
inline uint64_t WallClock() {
  return static_cast<uint64_t>(
      std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count());
}

inline uint64_t NewSession() {
  std::random_device entropy;
  return uint64_t{entropy()} << 32 | entropy();
}

}  // namespace longhaul::site
