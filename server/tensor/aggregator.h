// The sum of one round of one tensor: one fp32 accumulator, whatever the number of workers. A chunk is added
// the moment it arrives; a bit per worker and chunk is tested and set before, so nothing can be added twice.
//
// Floating-point sums depend on their order. In order of arrival nothing is stored, but two runs differ in
// their last bits. In order of rank a chunk's contributions are held until its sum is asked for, and are
// summed from the lowest rank to the highest: bitwise the same whatever arrived when. That takes up to 4
// bytes per element and worker, reached when every chunk waits for the same worker.
//
// A robust aggregation (server/tensor/robust_mean.h) holds contributions in the same way. Its sum of a chunk
// is the robust mean times the weight of all that has arrived, so that what is missing stays the loss
// policy's.
//
// Memory is touched where a chunk needs it, and a new round costs no walk over the chunks: what is kept of
// one says of which round it is.
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
#include "server/tensor/held_values.h"
#include "server/tensor/robust_mean.h"
#include "transport/core/window/window_types.h"

namespace longhaul::server {

class Aggregator {
 public:
  enum class Order : uint8_t { kArrival, kRank };

  // Robust: order of rank, whatever `order` is. plugin: of Aggregation::kPlugin. Throws std::bad_alloc.
  Aggregator(codec::ChunkGeometry geometry, uint32_t ranks, Order order = Order::kArrival,
             Aggregation how = Aggregation::kMean, const longhaul_aggregation* plugin = nullptr);

  // Adds weight * scale * values to the chunk's sum, and weight to its weight. False, with nothing added,
  // when this rank's contribution to the chunk is already in. REQUIRES: rank and chunk in range, values of
  // the chunk's length, weight > 0.
  bool Add(uint32_t rank, uint32_t chunk, std::span<const float> values, float weight, float scale = 1.0f);

  bool Contributed(uint32_t rank, uint32_t chunk) const { return contributed_[rank].Test(chunk); }
  // An empty bitmap: none of this round.
  const transport::ChunkBitmap& contributed(uint32_t rank) const { return contributed_[rank]; }
  std::span<const transport::ChunkBitmap> contributions() const { return contributed_; }
  // Workers in the chunk's sum, and the sum of their weights.
  uint32_t contributors(uint32_t chunk) const { return Of(chunk).contributors; }
  double weight(uint32_t chunk) const;
  // sum of weight * scale * values; all zero without contributors. Nothing is added to the chunk after
  // this. liars: of a robust aggregation (LiarsAmong).
  std::span<float> sum(uint32_t chunk, size_t liars = 0);
  // Contributions count alike, whatever they weigh.
  bool robust() const { return robust_mean_.has_value(); }
  // What the rule could not do in the last sum(), after its name; "": nothing.
  const std::string& failed() const { return failed_; }

  // Forgets everything: the next round begins. Walks the chunks only when the sum of some was not asked for.
  void Reset();

  // Contributions that are held, for statistics.
  size_t held_chunks() const { return held_.size(); }

 private:
  // Of a chunk, in the round that it names.
  struct Tally {
    uint32_t round;
    uint32_t contributors;
    double weight;
    uint32_t first_held;  // lowest rank first
  };
  Tally Of(uint32_t chunk) const { return tallies_[chunk].round == round_ ? tallies_[chunk] : Tally{}; }
  void Accumulate(uint32_t chunk, std::span<const float> values, float factor, bool first);
  void SumHeld(uint32_t chunk);
  void RobustSum(uint32_t chunk, size_t liars);

  codec::ChunkGeometry geometry_;
  Order order_;
  std::optional<RobustMean> robust_mean_;  // none: the mean
  std::string failed_;
  uint32_t round_ = 1;
  ZeroedArray<float> sums_;
  std::vector<transport::ChunkBitmap> contributed_;  // by rank
  ZeroedArray<Tally> tallies_;                       // by chunk
  HeldValues held_;                                  // empty in order of arrival
};

}  // namespace longhaul::server
