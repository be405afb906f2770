// Sums of segs: what ranks have in their own memory and what came in packets become one, in one pass.
#pragma once

#include <cstdint>
#include <span>

#include "offload/engine/operation.h"

namespace longhaul::offload {

class BufferCompute {
 public:
  // Of one source: with the sums of 4 ranks and the results of 4 it stays in a core's second cache.
  static constexpr uint32_t kBurstBytes = 16 * 1024;

  explicit BufferCompute(OffloadStats* stats) : stats_(stats) {}

  // Whether the type has that operation.
  static bool Supports(ReduceOp op, DataType type);

  // out = externals (units' data and packets' payloads), then the ranks that are present, of `count` segs
  // from `first` on. `out` may be one of the sources. REQUIRES: at least one source.
  void Sum(const Operation& op, uint32_t first, uint32_t count, std::span<const std::byte* const> externals,
           std::byte* out);
  // The unit's sum and one more.
  void Accumulate(const Operation& op, SegPool::Unit& unit, const std::byte* data);
  // Turns a sum into the result.
  void Finish(const Operation& op, uint32_t sid, uint32_t count, uint32_t participants, std::byte* data);
  // To every rank here that receives these segs; ranks that have the same memory get it once.
  void Deliver(const Operation& op, uint32_t first, uint32_t count, const std::byte* data);
  // Where a result of these segs may be made so that one delivery less is to do; null: nowhere.
  std::byte* Destination(const Operation& op, uint32_t first, uint32_t count) const;

  // Segs from `first` on that a burst may take.
  static uint32_t BurstSegs(const Operation& op);

 private:
  static uint64_t BytesOf(const Operation& op, uint32_t first, uint32_t count);

  OffloadStats* stats_;
};

}  // namespace longhaul::offload
