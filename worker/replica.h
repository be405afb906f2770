// A worker's own copy of a tensor's values, where results may lose chunks (downlink lossy): what does not arrive
// stays as it was in the round before. Results are written straight into it; every so many rounds the server's
// hash proves that it has what the server has.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "longhaul/status.h"

namespace longhaul::worker {

class Replica {
 public:
  struct Stats {
    uint64_t agreed = 0;      // hashes that matched
    uint64_t mismatches = 0;  // and that did not
  };

  // hash_rounds: of the job, >= 1.
  Replica(uint64_t count, uint32_t hash_rounds) : hash_rounds_(hash_rounds), values_(count) {}

  std::span<const float> values() const { return values_; }
  // For whoever writes the chunks of a result.
  std::span<float> writable() { return values_; }

  // Whether a result of this round may come with low chunks. kProtocolViolation: not in a hash round, nor to a
  // worker without the values of the round before.
  Status CheckPartial(uint64_t round) const;
  // The result of this round is here, whole or as far as it came. Errors: as OnServerHash, when the server's hash
  // of the round was here first.
  Status OnResult(uint64_t round);
  // The server's hash of the values after this round. kDataLoss: this worker has other values. A hash of a round
  // of which no result came changes nothing.
  Status OnServerHash(uint64_t round, uint32_t hash);

  const Stats& stats() const { return stats_; }

 private:
  struct Hash {
    uint64_t round = 0;
    uint32_t value = 0;
  };
  Status Compare();

  uint32_t hash_rounds_;
  std::vector<float> values_;
  std::optional<uint64_t> round_;  // of the newest result
  // The newest of each that has not been compared: either may come first.
  std::optional<Hash> own_;
  std::optional<Hash> servers_;
  Stats stats_;
};

}  // namespace longhaul::worker
