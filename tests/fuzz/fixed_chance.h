// OpenSSL's chance replaced by a seeded generator, so that an input does the same in every run: handshakes,
// new keys and certificates included. Only for fuzzers: keys made like this are public.
#pragma once

#include <openssl/rand.h>

#include "base/random.h"

namespace longhaul::fuzz {

inline Random& FixedRandom() {
  static Random random(1);
  return random;
}

inline int FixedBytes(unsigned char* out, int size) {
  for (int i = 0; i < size; ++i) out[i] = static_cast<unsigned char>(FixedRandom().Next());
  return 1;
}

// Chance begins anew, at the same place for the same seed.
inline void RestartChance(uint64_t seed) {
  static const RAND_METHOD method = {nullptr, FixedBytes, nullptr, nullptr, FixedBytes, [] { return 1; }};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // the one call that does it for a whole process
  static const bool installed = RAND_set_rand_method(&method) == 1;
#pragma GCC diagnostic pop
  (void)installed;
  FixedRandom() = Random(seed);
}

}  // namespace longhaul::fuzz
