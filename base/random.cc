#include "base/random.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace longhaul {
namespace {
uint64_t SplitMix64(uint64_t& x) {
  x += 0x9e3779b97f4a7c15ull;
  uint64_t z = x;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}
}  // namespace

Random::Random(uint64_t seed) {
  for (uint64_t& word : state_) word = SplitMix64(seed);
}

uint64_t Random::Next() {
  const uint64_t result = std::rotl(state_[0] + state_[3], 23) + state_[0];
  const uint64_t t = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= t;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

uint64_t Random::Below(uint64_t bound) {
  LH_CHECK_OP(bound, >, 0u);
  // Rejection keeps it unbiased; at most one retry is expected.
  const uint64_t limit = ~uint64_t{0} - ~uint64_t{0} % bound;
  uint64_t v = Next();
  while (v >= limit) v = Next();
  return v % bound;
}

double Random::Uniform() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

bool Random::Chance(double p) { return Uniform() < std::clamp(p, 0.0, 1.0); }

double Random::Normal() {
  double u = 0, v = 0, s = 0;
  do {
    u = 2 * Uniform() - 1;
    v = 2 * Uniform() - 1;
    s = u * u + v * v;
  } while (s >= 1 || s == 0);
  return u * std::sqrt(-2 * std::log(s) / s);
}

Random Random::Fork(uint64_t stream) {
  uint64_t mix = Next() ^ (stream * 0xd6e8feb86659fd93ull);
  return Random(SplitMix64(mix));
}

}  // namespace longhaul
