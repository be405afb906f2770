#include "worker/demo/local_steps.h"

#include <utility>

#include "base/check.h"

namespace longhaul::worker {

LocalSteps::LocalSteps(const codec::OptimizerSpec& local, uint64_t steps) : steps_(steps) {
  LH_CHECK(!local.aggregates() && steps >= 1);
  for (size_t t = 0; t < Mlp::kTensors; ++t) {
    optimizers_[t] = codec::MakeOptimizer(local, Mlp::kShapes[t].count);
  }
}

double LocalSteps::Run(uint64_t round, double rate_share, MiniBatches& batches, Mlp& model,
                       Mlp::Tensors& pseudo_gradient) {
  Mlp::Tensors& parameters = model.parameters();
  for (size_t t = 0; t < Mlp::kTensors; ++t) {
    pseudo_gradient[t] = parameters[t];
    optimizers_[t]->ScaleRate(rate_share);
  }
  double loss = 0;
  for (uint64_t step = 0; step < steps_; ++step) {
    loss += model.Gradient(batches.ForRound(round * steps_ + step), gradients_);
    ++taken_;
    for (size_t t = 0; t < Mlp::kTensors; ++t) {
      optimizers_[t]->Step(taken_, 0, gradients_[t], parameters[t], next_[t]);
      std::swap(parameters[t], next_[t]);
    }
  }
  for (size_t t = 0; t < Mlp::kTensors; ++t) {
    for (size_t i = 0; i < parameters[t].size(); ++i) pseudo_gradient[t][i] -= parameters[t][i];
  }
  return loss / static_cast<double>(steps_);
}

}  // namespace longhaul::worker
