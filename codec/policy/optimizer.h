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
//
// Each is a longhaul_optimizer (longhaul/plugin_api.h), and so are those of plug-ins, which are named in the
// same way: what parses texts, keeps state and makes steps does not know which is which.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/zeroed_array.h"
#include "longhaul/plugin_api.h"
#include "longhaul/status.h"

namespace longhaul::codec {

// What a tensor's declaration asks for. Two texts that mean the same give equal specs.
struct OptimizerSpec {
  const longhaul_optimizer* rule = nullptr;  // null: the mean is handed back ("aggregate")
  std::vector<double> settings = {};         // in the order of the rule's table

  bool operator==(const OptimizerSpec&) const = default;
  bool aggregates() const { return rule == nullptr; }
  // Knows of steps of some of the workers.
  bool takes_parts() const { return rule != nullptr && (rule->flags & LONGHAUL_OPTIMIZER_PARTS) != 0; }
  // "sgd", "aggregate".
  std::string_view name() const { return rule == nullptr ? "aggregate" : rule->name; }
  // Of the setting with this name; 0 where there is none.
  double Get(std::string_view setting) const;
  // The text in canonical form, for messages: "sgd:lr=0.1,momentum=0.9,nesterov". Parses to an equal spec.
  std::string ToString() const;
};

// The optimizers that a declaration may name, and the aggregations of plug-ins.
class Rules {
 public:
  // The built-in ones.
  Rules();
  // And the plug-in's. Errors: kVersionMismatch, kInvalidArgument (says what of it cannot be),
  // kAlreadyExists (the name): nothing is added.
  Status Add(const longhaul_plugin* plugin);
  // kInvalidArgument says what is wrong with which part, and what is known; kNotFound: the name is unknown.
  Result<OptimizerSpec> Parse(std::string_view text) const;
  // The most arrays that any of them keeps.
  size_t MostState() const;
  // Null: no plug-in has one of that name.
  const longhaul_aggregation* FindAggregation(std::string_view name) const;

 private:
  const longhaul_optimizer* Find(std::string_view name) const;
  Status Check(const longhaul_optimizer* rule) const;
  Status Check(const longhaul_aggregation* rule) const;

  std::vector<const longhaul_optimizer*> known_;
  std::vector<const longhaul_aggregation*> aggregations_;
};

// Of the built-in ones.
Result<OptimizerSpec> ParseOptimizer(std::string_view text);

// The arrays that an optimizer keeps beside the values, by PyTorch's names: none, "momentum_buffer", or
// "exp_avg" and "exp_avg_sq".
std::vector<std::string> StateNames(const OptimizerSpec& spec);

// What is stored of an optimizer, as text and names of arrays, can be: the built-in one of that name keeps
// these, or it is a plug-in's, which is not here.
bool MayKeep(std::string_view optimizer, const std::vector<std::string>& state);

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

  // A step's code where the rule threw.
  static constexpr int32_t kThrew = std::numeric_limits<int32_t>::min();

  // For `count` elements, its state zero. It holds 4 bytes per element for momentum, 8 for Adam, of which a
  // chunk's are touched with its first step. Throws std::bad_alloc.
  Optimizer(OptimizerSpec spec, uint64_t count);
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Writes the new values of elements first..first+gradient.size()-1, from the old ones and the mean
  // gradient. `updated` does not overlap the others. `step` counts the rounds of the tensor from 1, this one
  // included: it belongs to the round, so that chunks may come in any order. Called once per element and
  // round. The rule's code: 0, or what it could not do. REQUIRES: spans of equal length, first + length <=
  // the count given, step >= 1.
  int32_t Step(uint64_t step, uint64_t first, std::span<const float> gradient, std::span<const float> current,
               std::span<float> updated) {
    return PartStep(static_cast<double>(step), 1, first, gradient, current, updated);
  }
  // A step that workers of `share` of the weight have made: steps whose shares come to 1 move the values
  // about as far as one of all. gradient: the mean over all workers; those that are not in it count
  // as zero, so that sgd takes it as it is; adam and adamw take the mean over those that are in it, and the
  // share of the rate. With momentum (adam: beta1) the values look ahead (optimizer.cc). Of share 0 nothing
  // changes. steps: the sum of the shares, this one included. REQUIRES: as Step; share >= 0, steps > 0
  // unless share is 0.
  int32_t PartStep(double steps, double share, uint64_t first, std::span<const float> gradient,
                   std::span<const float> current, std::span<float> updated);
  // From the next step on the learning rate is `share` of the spec's, for a schedule. REQUIRES: finite, >= 0.
  void ScaleRate(double share);

  // The state after the last round, and so it stays. REQUIRES: no step of the next one has been made.
  std::vector<State> Snapshot() const;
  // To be called before a round's first step where snapshots are taken. Throws std::bad_alloc.
  void BeginRound();
  // Goes on from there. REQUIRES: arrays of StateNames' names, in order, of the right length, held by no one
  // else.
  void Restore(std::vector<State> state);

 private:
  // The round reads `from` and writes `to`: the same one, where no reader holds it.
  struct Array {
    std::string name;
    std::shared_ptr<ZeroedArray<float>> from;
    std::shared_ptr<ZeroedArray<float>> to;
  };
  void Prepare(double steps, double share);

  const OptimizerSpec spec_;
  std::vector<Array> arrays_;
  longhaul_step step_ = {};  // settings, rate, steps and share of the last one, for which it is prepared
  std::array<double, LONGHAUL_PREPARED> prepared_ = {};
};

std::unique_ptr<Optimizer> MakeOptimizer(const OptimizerSpec& spec, uint64_t count);

// The rules of optimizer.cc, in the order in which messages name them.
std::span<const longhaul_optimizer* const> BuiltInOptimizers();

}  // namespace longhaul::codec
