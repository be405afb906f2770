// What the server does with a round's mean gradient: nothing ("aggregate"), or a step of an optimizer.
//
//   aggregate
//   sgd:lr=0.1[,momentum=0.9][,nesterov][,weight_decay=0.0001]
//   adam:lr=0.001[,beta1=0.9][,beta2=0.999][,eps=1e-8][,weight_decay=0]
//   adamw:lr=0.001[,beta1=0.9][,beta2=0.999][,eps=1e-8][,weight_decay=0.01]
//
// Names, defaults and the meaning of every setting are those of PyTorch's optimizers, so that tuned values
// carry over. A step works on one chunk at a time, so that a chunk can leave for the workers while others
// still arrive.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/zeroed_array.h"
#include "longhaul/status.h"

namespace longhaul::codec {

// What a tensor's declaration asks for. Two texts that mean the same give equal specs.
struct OptimizerSpec {
  enum class Kind : uint8_t { kAggregate, kSgd, kAdam, kAdamW };

  Kind kind = Kind::kAggregate;
  double lr = 0;        // learning rate; finite, >= 0
  double momentum = 0;  // sgd: 0 <= momentum < 1
  double beta1 = 0;     // adam, adamw: decay of the mean gradient, 0 <= beta1 < 1
  double beta2 = 0;     // adam, adamw: decay of the mean squared gradient, 0 <= beta2 < 1
  double eps = 0;       // adam, adamw: > 0
  // Finite, >= 0. sgd, adam: added to the gradient (L2); adamw: pulls the parameters (decoupled).
  double weight_decay = 0;
  bool nesterov = false;  // sgd; needs momentum > 0

  bool operator==(const OptimizerSpec&) const = default;
  // The text in canonical form, for messages: "sgd:lr=0.1,momentum=0.9,nesterov". Parses to an equal spec.
  std::string ToString() const;
};

// kInvalidArgument says what is wrong with which part, and what is known.
Result<OptimizerSpec> ParseOptimizer(std::string_view text);

// The arrays that an optimizer keeps beside the values, by PyTorch's names: none, "momentum_buffer", or
// "exp_avg" and "exp_avg_sq".
std::vector<std::string> StateNames(const OptimizerSpec& spec);

// The state of one tensor's optimizer. Not thread-safe.
//
// As with values (server/tensor/parameter_store.h), state that is read is not copied: every round writes
// every element, and the round that would write over what a Snapshot() holds writes into fresh memory.
class Optimizer {
 public:
  struct State {
    std::string name;  // of StateNames
    std::shared_ptr<const ZeroedArray<float>> values;
  };

  Optimizer(const OptimizerSpec& spec, uint64_t count);
  virtual ~Optimizer() = default;

  // Writes the new values of elements first..first+gradient.size()-1, from the old ones and the mean
  // gradient. `updated` does not overlap the others. `step` counts the rounds of the tensor from 1, this one
  // included: it belongs to the round, so that chunks may come in any order. Called once per element and
  // round. REQUIRES: spans of equal length, first + length <= the count given to MakeOptimizer, step >= 1.
  void Step(uint64_t step, uint64_t first, std::span<const float> gradient, std::span<const float> current,
            std::span<float> updated) {
    PartStep(static_cast<double>(step), 1, first, gradient, current, updated);
  }
  // A step that workers of `share` of the weight have made: steps whose shares come to 1 move the values
  // about as far as one of all. gradient: the mean over all workers; those that are not in it count
  // as zero, so that sgd takes it as it is; adam and adamw take the mean over those that are in it, and the
  // share of the rate. With momentum (adam: beta1) the values look ahead (optimizer.cc). Of share 0 nothing
  // changes. steps: the sum of the shares, this one included. REQUIRES: as Step; share >= 0, steps > 0
  // unless share is 0.
  virtual void PartStep(double steps, double share, uint64_t first, std::span<const float> gradient,
                        std::span<const float> current, std::span<float> updated) = 0;
  // From the next step on the learning rate is `share` of the spec's, for a schedule. REQUIRES: finite, >= 0.
  virtual void ScaleRate(double share) = 0;

  // The state after the last round, and so it stays. REQUIRES: no step of the next one has been made.
  std::vector<State> Snapshot() const;
  // To be called before a round's first step where snapshots are taken. Throws std::bad_alloc.
  void BeginRound();
  // Goes on from there. REQUIRES: arrays of StateNames' names, in order, of the right length, held by no one
  // else.
  void Restore(std::vector<State> state);

 protected:
  // The round reads `from` and writes `to`: the same one, where no reader holds it.
  struct Array {
    std::string name;
    std::shared_ptr<ZeroedArray<float>> from;
    std::shared_ptr<ZeroedArray<float>> to;
  };
  std::vector<Array> arrays_;
};

// An optimizer for `count` elements, its state zero. It holds 4 bytes per element for momentum, 8 for Adam,
// of which a chunk's are touched with its first step. Throws std::bad_alloc.
std::unique_ptr<Optimizer> MakeOptimizer(const OptimizerSpec& spec, uint64_t count);

}  // namespace longhaul::codec
