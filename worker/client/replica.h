// A worker's own copy of a tensor's values, where results may lose chunks (downlink lossy): what does not
// arrive stays as it was in the round before. Results are written straight into it; every so many rounds the
// server's hash proves that it has what the server has.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/zeroed_array.h"
#include "codec/chunk/chunk.h"
#include "longhaul/status.h"
#include "transport/core/window/window_types.h"

namespace longhaul::worker {

class Replica {
 public:
  struct Stats {
    uint64_t agreed = 0;      // hashes that matched
    uint64_t mismatches = 0;  // and that did not
  };

  // results: the geometry of the results. hash_rounds: of the job, >= 1.
  Replica(const codec::ChunkGeometry& results, uint32_t hash_rounds)
      : results_(results), hash_rounds_(hash_rounds), values_(results.count), missed_(results.chunks()) {}

  std::span<const float> values() const { return values_.span(); }
  // Where the chunks of a result are written.
  std::span<float> writable() { return values_.span(); }

  // Whether a result of this round may come with low chunks. kProtocolViolation: not in a hash round, nor to
  // a worker without the values of the round before.
  Status CheckPartial(uint64_t round) const;
  // The result of this round is here, as far as the chunks that were received. Errors: as OnServerHash, when
  // the server's hash of the round was here first; kDataLoss also when a chunk that was missing in the result
  // before is missing again: the server has forgotten that it owes it.
  Status OnResult(uint64_t round, const transport::ChunkBitmap& received);
  // The same in steps, for large tensors: every chunk in order, between Begin and Finish.
  void BeginResult(uint64_t round);
  Status OnResultChunk(uint32_t chunk, bool received);
  Status FinishResult();
  // The server's hash of the values after this round. kDataLoss: this worker has other values. A hash of a
  // round of which no result came changes nothing.
  Status OnServerHash(uint64_t round, uint32_t hash);
  // What the server takes this worker to have after the round before a hash round (codec::ReplicaHash), with
  // whatever it had missed by then. Comes later than that round's result; of a round of which no result came
  // it changes nothing. kDataLoss: this worker has other values.
  Status OnReplicaHash(uint64_t round, uint32_t hash);

  const Stats& stats() const { return stats_; }

 private:
  struct Hash {
    uint64_t round = 0;
    uint32_t value = 0;
  };
  Status Compare();
  Status Judge(uint64_t round, const std::string& what, uint32_t own, uint32_t servers);

  codec::ChunkGeometry results_;
  uint32_t hash_rounds_;
  ZeroedArray<float> values_;
  std::optional<uint64_t> round_;        // of the newest result
  transport::ChunkBitmap newly_missed_;  // of the result that is being gone through
  uint32_t whole_hash_ = 0;              // of its values so far
  std::vector<uint32_t> chunk_hashes_;
  // The newest of each that has not been compared: either may come first.
  std::optional<Hash> own_;
  std::optional<Hash> servers_;
  std::optional<Hash> before_hash_round_;  // own
  transport::ChunkBitmap missed_;          // of the newest result
  Stats stats_;
};

}  // namespace longhaul::worker
