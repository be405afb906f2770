// Error feedback for the network: what a window lost of a gradient is added to the next one.
//
// Invariant (conservation): over a run, the sum of what was delivered plus what is owed here equals the sum
// of the gradients given to Prepare; exactly in integers, to rounding in floats. Nothing is lost, only
// delayed. That covers every way to be lost: by the network, by quantisation, by being left out of a sparse
// chunk.
//
// But for a debt that grows beyond what float holds: it would stay infinite for ever. It is dropped with its
// chunk, and counted; the gradient travels alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "codec/chunk.h"
#include "codec/sender_memory.h"

namespace longhaul::codec {

class ResidualMemory final : public SenderMemory {
 public:
  explicit ResidualMemory(const ChunkGeometry& geometry)
      : SenderMemory(geometry), owed_(geometry.count, 0.0f) {}

  std::span<const float> owed() const override { return owed_; }
  uint64_t debts_dropped() const override { return debts_dropped_; }

 private:
  std::span<const float> Combine(std::span<const float> gradient) override;
  void Deliver(uint32_t chunk, std::span<const float> sent) override;

  std::vector<float> owed_;  // under way: with the gradient
  uint64_t debts_dropped_ = 0;
};

}  // namespace longhaul::codec
