// Error feedback for the network: what a window lost of a gradient is added to the next one.
//
// Invariant (conservation): over a run, the sum of what was delivered plus what is held here equals the sum
// of the gradients given to Combine; exactly in integers, to rounding in floats. Nothing is lost, only
// delayed.
//
//   combined = Combine(gradient)   the values to send: gradient + residual
//   ... the window closes ...
//   Settle(lost chunks)            their combined values are the new residual, all else is delivered
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "codec/chunk.h"

namespace longhaul::codec {

class Residual {
 public:
  explicit Residual(const ChunkGeometry& geometry);

  // gradient + residual; the span is stable until the next Combine. REQUIRES: gradient.size() == count, no
  // combination is unsettled.
  std::span<const float> Combine(std::span<const float> gradient);
  // Ends the window that carried the combination: lost(chunk) says which chunks the receiver does not have.
  void Settle(const std::function<bool(uint32_t chunk)>& lost);
  // Nothing of the combination was delivered.
  void SettleAllLost() {
    Settle([](uint32_t) { return true; });
  }

  // What waits to be repaid, by element. Between Combine and Settle: the combination.
  std::span<const float> values() const { return values_; }

 private:
  ChunkGeometry geometry_;
  std::vector<float> values_;
  bool unsettled_ = false;
};

}  // namespace longhaul::codec
