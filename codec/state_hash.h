// The proof that replicas agree where results may lose chunks (downlink lossy): every so many rounds the server
// tells the hash of a tensor's values, and each worker compares it with its own copy.
#pragma once

#include <cstdint>
#include <span>

#include "base/crc32c.h"

namespace longhaul::codec {

// Whether everything of this round's result must arrive and is compared: rounds hash_rounds - 1,
// 2 hash_rounds - 1, ... REQUIRES: hash_rounds >= 1.
constexpr bool IsHashRound(uint64_t round, uint32_t hash_rounds) { return (round + 1) % hash_rounds == 0; }

// CRC-32C of the values, float32 little-endian as in memory and on the wire: equal bits, equal hash.
inline uint32_t StateHash(std::span<const float> values) {
  return Crc32c({reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()});
}

}  // namespace longhaul::codec
