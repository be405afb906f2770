// The proof that replicas agree where results may lose chunks (downlink lossy): every so many rounds the
// server sends the hash of a tensor's values, and each worker compares it with its own copy. In a hash round
// everything arrives, so that hash cannot see what went wrong before. With it comes a second one, of what the
// worker should have had after the round before, with what it had missed then: an ordinary round, with its
// debts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/crc32c.h"
#include "codec/chunk/chunk.h"

namespace longhaul::codec {

// Whether everything of this round's result must arrive and is compared: rounds hash_rounds - 1,
// 2 hash_rounds - 1, ... REQUIRES: hash_rounds >= 1.
constexpr bool IsHashRound(uint64_t round, uint32_t hash_rounds) { return (round + 1) % hash_rounds == 0; }

// CRC-32C of the values as a worker has them, float32 little-endian as in memory (codec::AsArrived where they
// travel shorter): equal bits, equal hash. `hash` is the one of the values before these.
inline uint32_t StateHash(std::span<const float> values, uint32_t hash = 0) {
  return Crc32c({reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()}, hash);
}

// The same by chunks: CRC-32C of the chunks' hashes. Which version of each chunk a replica has is enough
// to compute the replica's hash without its values.
inline uint32_t HashOfHashes(std::span<const uint32_t> chunk_hashes, uint32_t hash = 0) {
  return Crc32c({reinterpret_cast<const uint8_t*>(chunk_hashes.data()), chunk_hashes.size_bytes()}, hash);
}
inline uint32_t ReplicaHash(const ChunkGeometry& geometry, std::span<const float> values) {
  std::vector<uint32_t> hashes(geometry.chunks());
  for (uint32_t chunk = 0; chunk < hashes.size(); ++chunk) {
    hashes[chunk] = StateHash(geometry.Elements(values, chunk));
  }
  return HashOfHashes(hashes);
}

}  // namespace longhaul::codec
