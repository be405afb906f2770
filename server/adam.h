// Adam (Kingma & Ba 2015, algorithm 1) and AdamW (Loshchilov & Hutter 2019, algorithm 2), the latter's decay
// scaled by lr as in PyTorch:
//
//   adam: g += weight_decay w      adamw: w -= lr weight_decay w
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   w -= lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps)
//
// t is the tensor's round, counted from 1: the step of a chunk needs nothing of other chunks.
#pragma once

#include <vector>

#include "server/optimizer.h"

namespace longhaul::server {

class Adam final : public Optimizer {
 public:
  // REQUIRES: spec.kind is kAdam or kAdamW.
  Adam(const OptimizerSpec& spec, uint64_t count);

  void Step(uint64_t step, uint64_t first, std::span<const float> gradient, std::span<const float> current,
            std::span<float> updated) override;
  void ScaleRate(double share) override;

 private:
  // What depends on the step's number, in double since beta^t of late steps is lost in float.
  struct Correction {
    uint64_t step = 0;
    float rate = 0;        // lr / (1 - beta1^t)
    float root_scale = 0;  // 1 / sqrt(1 - beta2^t)
  };
  void CorrectFor(uint64_t step);

  const OptimizerSpec spec_;
  double lr_;              // of the next step
  Correction correction_;  // of the last step
  std::vector<float> mean_;
  std::vector<float> mean_square_;
};

}  // namespace longhaul::server
