// What the server does with a round's mean gradient: nothing ("aggregate"), or a step of an optimizer.
//
// A step works on one chunk at a time, so that a chunk can leave for the workers while others still arrive.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "longhaul/status.h"

namespace longhaul::server {

// What a tensor's declaration asks for. Two texts that mean the same give equal specs.
struct OptimizerSpec {
  enum class Kind : uint8_t { kAggregate, kSgd };

  Kind kind = Kind::kAggregate;
  float lr = 0;            // learning rate; finite, >= 0
  float momentum = 0;      // 0 <= momentum < 1
  float weight_decay = 0;  // finite, >= 0; added to the gradient (L2)
  bool nesterov = false;   // needs momentum > 0

  bool operator==(const OptimizerSpec&) const = default;
  // The text in canonical form, for messages: "sgd:lr=0.1,momentum=0.9,nesterov".
  std::string ToString() const;
};

// Parses "aggregate" or "sgd:lr=0.1[,momentum=0.9][,nesterov][,weight_decay=0.0001]".
// kInvalidArgument says what is wrong with which part, and what is known.
Result<OptimizerSpec> ParseOptimizer(std::string_view text);

// The state of one tensor's optimizer. Not thread-safe.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Writes the new values of elements first..first+gradient.size()-1, from the old ones and the mean
  // gradient. `updated` does not overlap the others. Called once per element and round. REQUIRES: spans of
  // equal length, first + length <= the count given to MakeOptimizer.
  virtual void Step(uint64_t first, std::span<const float> gradient, std::span<const float> current,
                    std::span<float> updated) = 0;
};

// An optimizer for `count` elements, its state zero.
std::unique_ptr<Optimizer> MakeOptimizer(const OptimizerSpec& spec, uint64_t count);

}  // namespace longhaul::server
