// Downlink lossy: which chunks of a tensor's results may be lost on the way to a worker, and what each worker
// has missed.
//
// A result is a state, not an increment: a chunk that a worker misses it keeps as it was, and has again as
// soon as the chunk next arrives. So what it missed is high in its next result, and no replica is ever more
// than one round behind in any chunk. High are besides the chunks that have changed most in the last rounds
// (by the squared norm of the change, smoothed and chosen like gradients: codec/policy/priority.h); the rest
// may be lost.
//
// Everything is high in a hash round (codec/policy/state_hash.h), and for a worker of which it is not known
// what it has of the round before: its first result, or it came again, was left out, pushed without wanting
// the result, or its CLOSE is not here yet.
//
// Of one tensor; one bitmap per worker. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/work_budget.h"
#include "base/zeroed_array.h"
#include "codec/chunk/chunk.h"
#include "codec/policy/priority.h"
#include "transport/core/window/window_types.h"

namespace longhaul::server {

class LossyDownlink {
 public:
  struct Options {
    double high_share = 0.2;  // as PriorityOptions
    double high_energy = 0;
    uint32_t hash_rounds = 64;  // >= 1
  };
  struct Stats {
    uint64_t lost = 0;    // chunks that workers missed, high ones never
    uint64_t repaid = 0;  // of them, those that have arrived since
  };

  // `results`: the geometry of the results.
  LossyDownlink(const codec::ChunkGeometry& results, const Options& options);

  // A round has its first final chunk: what changed in the one before is scored now. To be called once for
  // each, before ChangedBy of this round, and followed by Rank.
  void BeginRound(uint64_t round);
  // Scores and ranks, until done or the budget is spent. True: Low of this round may be asked.
  bool Rank(WorkBudget& budget);
  bool ranked() const { return ranked_; }
  // A chunk of the round in progress is final. Spans of the chunk's length.
  void ChangedBy(uint32_t chunk, std::span<const float> before, std::span<const float> after);

  // The chunks that this round's result to this worker may lose, by the newest ranking.
  transport::ChunkBitmap Low(uint32_t rank, uint64_t round) const;
  // What the worker has missed of the round's result, all else it has. Of the newest round counts; what is
  // older only makes the statistics.
  void OnReceipt(uint32_t rank, uint64_t round, transport::ChunkBitmap missed);
  // What the worker has after this round, by its receipt: the round's chunks, and of those it missed the
  // values of the round before. Known only of the round before a hash round; none when the receipt is not
  // here, or not of this round. codec::ReplicaHash of the worker's values.
  std::optional<uint32_t> ReplicaHash(uint32_t rank, uint64_t round) const;
  // It is not known what the worker has.
  void Forget(uint32_t rank) { workers_.erase(rank); }

  const Stats& stats() const { return stats_; }

 private:
  struct Known {
    uint64_t round = 0;
    transport::ChunkBitmap missed;
  };

  codec::ChunkGeometry results_;
  uint32_t hash_rounds_;
  codec::PriorityClassifier classifier_;
  ZeroedArray<double> change_;  // by chunk, of the round in progress
  ZeroedArray<double> scored_;  // ... of the one before
  uint32_t next_scored_ = 0;    // chunk
  bool ranked_ = true;
  bool begun_ = false;                 // there was a round before the one in progress
  transport::ChunkBitmap high_;        // all until a round is ranked
  std::map<uint32_t, Known> workers_;  // by rank
  uint64_t round_ = 0;                 // in progress
  // Chunks of the round before a hash round, and as they were before it.
  std::optional<uint64_t> hashed_round_;
  ZeroedArray<uint32_t> hashes_, hashes_before_;
  Stats stats_;
};

}  // namespace longhaul::server
