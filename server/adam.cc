// Compiled with -fno-math-errno (CMakeLists.txt): sqrt is then one exact instruction for a whole vector.
// Eigen's own is an approximation that differs between makes of CPU and turns infinity into NaN.
#include "server/adam.h"

#include <cmath>

#include "base/check.h"
#include "server/fused_step.h"

namespace longhaul::server {
namespace {

template <int N>
EIGEN_ALWAYS_INLINE FusedBlock<N> Sqrt(const FusedBlock<N>& values) {
  FusedBlock<N> roots;
  for (int k = 0; k < N; ++k) roots[k] = std::sqrt(values[k]);
  return roots;
}

}  // namespace

Adam::Adam(const OptimizerSpec& spec, uint64_t count)
    : spec_(spec), lr_(spec.lr), mean_(count, 0.0f), mean_square_(count, 0.0f) {}

void Adam::ScaleRate(double share) {
  lr_ = spec_.lr * share;
  correction_ = {};
}

void Adam::CorrectFor(uint64_t step) {
  LH_CHECK_OP(step, >=, uint64_t{1});
  if (step == correction_.step) return;
  const auto t = static_cast<double>(step);
  correction_.step = step;
  correction_.rate = static_cast<float>(lr_ / (1 - std::pow(spec_.beta1, t)));
  correction_.root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(spec_.beta2, t)));
}

void Adam::Step(uint64_t step, uint64_t first, std::span<const float> gradient,
                std::span<const float> current, std::span<float> updated) {
  LH_CHECK_OP(gradient.size(), ==, updated.size());
  LH_CHECK_OP(gradient.size(), ==, current.size());
  LH_CHECK_OP(first + gradient.size(), <=, mean_.size());
  CorrectFor(step);
  const bool decoupled = spec_.kind == OptimizerSpec::Kind::kAdamW;
  const auto l2 = static_cast<float>(decoupled ? 0 : spec_.weight_decay);
  const auto keep = static_cast<float>(decoupled ? 1 - lr_ * spec_.weight_decay : 1);
  const auto beta1 = static_cast<float>(spec_.beta1);
  const auto beta2 = static_cast<float>(spec_.beta2);
  const auto rest1 = static_cast<float>(1 - spec_.beta1);
  const auto rest2 = static_cast<float>(1 - spec_.beta2);
  const auto eps = static_cast<float>(spec_.eps);
  const float rate = correction_.rate;
  const float root_scale = correction_.root_scale;
  float* mean = mean_.data() + first;
  float* mean_square = mean_square_.data() + first;
  const float* g_in = gradient.data();
  const float* w_in = current.data();
  float* out = updated.data();
  ForBlocks(gradient.size(), [&]<int N>(size_t i) {
    const FusedBlock<N> w = LoadBlock<N>(w_in + i);
    const FusedBlock<N> g = LoadBlock<N>(g_in + i) + l2 * w;
    const FusedBlock<N> m = beta1 * LoadBlock<N>(mean + i) + rest1 * g;
    const FusedBlock<N> v = beta2 * LoadBlock<N>(mean_square + i) + rest2 * (g * g);
    StoreBlock<N>(m, mean + i);
    StoreBlock<N>(v, mean_square + i);
    StoreBlock<N>(keep * w - rate * m / (root_scale * Sqrt<N>(v) + eps), out + i);
  });
}

}  // namespace longhaul::server
