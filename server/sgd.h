// Stochastic gradient descent with momentum (Sutskever et al. 2013, in the form of PyTorch's SGD):
//
//   g += weight_decay w;  v = momentum v + g;  w -= lr v,   or with nesterov  w -= lr (g + momentum v)
#pragma once

#include <vector>

#include "server/optimizer.h"

namespace longhaul::server {

class Sgd final : public Optimizer {
 public:
  // REQUIRES: spec.kind is kSgd.
  Sgd(const OptimizerSpec& spec, uint64_t count);

  void Step(uint64_t step, uint64_t first, std::span<const float> gradient, std::span<const float> current,
            std::span<float> updated) override;
  void ScaleRate(double share) override;

 private:
  const double spec_lr_;
  float lr_;
  const float momentum_;
  const float weight_decay_;
  const bool nesterov_;
  std::vector<float> velocity_;  // empty without momentum
};

}  // namespace longhaul::server
