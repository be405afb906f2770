// Local-steps training (local SGD; DiLoCo, Douillard et al. 2023): a worker takes H optimizer steps of its
// own between two rounds and pushes old - new as the gradient of the round. The server's outer optimizer
// steps on the mean of these. It communicates H times less often; the local optimizer's state stays with the
// worker.
//
// Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "codec/policy/optimizer.h"
#include "worker/demo/mini_batches.h"
#include "worker/demo/mlp.h"

namespace longhaul::worker {

class LocalSteps {
 public:
  // REQUIRES: `local` is not aggregate, steps >= 1.
  LocalSteps(const codec::OptimizerSpec& local, uint64_t steps);

  // Trains `model`, which has the parameters of the round, on batches round * steps .. + steps - 1; its
  // learning rates are `rate_share` times the spec's. Leaves the model where that led to, and old - new in
  // `pseudo_gradient`. Returns the mean of the batches' losses, each before its step.
  double Run(uint64_t round, double rate_share, MiniBatches& batches, Mlp& model,
             Mlp::Tensors& pseudo_gradient);

 private:
  const uint64_t steps_;
  uint64_t taken_ = 0;
  std::array<std::unique_ptr<codec::Optimizer>, Mlp::kTensors> optimizers_;
  Mlp::Tensors gradients_ = Mlp::Zeros();
  Mlp::Tensors next_ = Mlp::Zeros();
};

}  // namespace longhaul::worker
