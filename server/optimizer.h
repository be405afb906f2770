// What the server does with a round's mean gradient: nothing ("aggregate"), or a step of an optimizer.
//
// A step works on one chunk at a time, so that a chunk can leave for the workers while others still arrive.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "server/optimizer_spec.h"

namespace longhaul::server {

// The state of one tensor's optimizer. Not thread-safe.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Writes the new values of elements first..first+gradient.size()-1, from the old ones and the mean
  // gradient. `updated` does not overlap the others. `step` counts the rounds of the tensor from 1, this one
  // included: it belongs to the round, so that chunks may come in any order. Called once per element and
  // round. REQUIRES: spans of equal length, first + length <= the count given to MakeOptimizer, step >= 1.
  virtual void Step(uint64_t step, uint64_t first, std::span<const float> gradient,
                    std::span<const float> current, std::span<float> updated) = 0;
  // From the next step on the learning rate is `share` of the spec's, for a schedule. REQUIRES: finite, >= 0.
  virtual void ScaleRate(double share) = 0;
};

// An optimizer for `count` elements, its state zero. It holds 4 bytes per element for momentum, 8 for Adam.
std::unique_ptr<Optimizer> MakeOptimizer(const OptimizerSpec& spec, uint64_t count);

}  // namespace longhaul::server
