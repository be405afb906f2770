// Seeded chance: xoshiro256++ (Blackman and Vigna), seeded by splitmix64. Chance is always an argument;
// the same seed gives the same sequence on every machine.
#pragma once

#include <cstdint>

namespace longhaul {

class Random {
 public:
  explicit Random(uint64_t seed);

  uint64_t Next();
  // Uniform in 0..bound-1; bound must be positive.
  uint64_t Below(uint64_t bound);
  // Uniform in [0, 1).
  double Uniform();
  // True with probability p; p is clamped to 0..1.
  bool Chance(double p);
  // Standard normal (Marsaglia's polar method).
  double Normal();
  // An independent generator for a named part, so that adding a draw in one part does not shift another.
  Random Fork(uint64_t stream);

 private:
  uint64_t state_[4];
};

}  // namespace longhaul
