#include "server/sgd.h"

#include "base/check.h"
#include "server/fused_step.h"

namespace longhaul::server {

Sgd::Sgd(const OptimizerSpec& spec, uint64_t count)
    : spec_lr_(spec.lr),
      lr_(static_cast<float>(spec.lr)),
      momentum_(static_cast<float>(spec.momentum)),
      weight_decay_(static_cast<float>(spec.weight_decay)),
      nesterov_(spec.nesterov) {
  if (momentum_ > 0) velocity_.resize(count, 0.0f);
}

void Sgd::ScaleRate(double share) { lr_ = static_cast<float>(spec_lr_ * share); }

void Sgd::Step(uint64_t, uint64_t first, std::span<const float> gradient, std::span<const float> current,
               std::span<float> updated) {
  LH_CHECK_OP(gradient.size(), ==, updated.size());
  LH_CHECK_OP(gradient.size(), ==, current.size());
  const float* g_in = gradient.data();
  const float* w_in = current.data();
  float* out = updated.data();
  if (velocity_.empty()) {
    return ForBlocks(gradient.size(), [&]<int N>(size_t i) {
      const FusedBlock<N> w = LoadBlock<N>(w_in + i);
      const FusedBlock<N> g = LoadBlock<N>(g_in + i) + weight_decay_ * w;
      StoreBlock<N>(w - lr_ * g, out + i);
    });
  }
  LH_CHECK_OP(first + gradient.size(), <=, velocity_.size());
  float* velocity = velocity_.data() + first;
  const auto step = [&]<int N>(size_t i, bool nesterov) {
    const FusedBlock<N> w = LoadBlock<N>(w_in + i);
    const FusedBlock<N> g = LoadBlock<N>(g_in + i) + weight_decay_ * w;
    const FusedBlock<N> v = momentum_ * LoadBlock<N>(velocity + i) + g;
    StoreBlock<N>(v, velocity + i);
    if (nesterov) {
      StoreBlock<N>(w - lr_ * (g + momentum_ * v), out + i);
    } else {
      StoreBlock<N>(w - lr_ * v, out + i);
    }
  };
  if (nesterov_) {
    ForBlocks(gradient.size(), [&]<int N>(size_t i) { step.template operator()<N>(i, true); });
  } else {
    ForBlocks(gradient.size(), [&]<int N>(size_t i) { step.template operator()<N>(i, false); });
  }
}

}  // namespace longhaul::server
