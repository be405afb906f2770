// Which optimizer a tensor has, as text and as values.
//
//   aggregate
//   sgd:lr=0.1[,momentum=0.9][,nesterov][,weight_decay=0.0001]
//   adam:lr=0.001[,beta1=0.9][,beta2=0.999][,eps=1e-8][,weight_decay=0]
//   adamw:lr=0.001[,beta1=0.9][,beta2=0.999][,eps=1e-8][,weight_decay=0.01]
//
// Names, defaults and the meaning of every setting are those of PyTorch's optimizers, so that what was tuned
// there carries over.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "longhaul/status.h"

namespace longhaul::server {

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

}  // namespace longhaul::server
