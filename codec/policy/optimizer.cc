// The optimizers' steps. Compiled with -fno-math-errno (CMakeLists.txt): sqrt is then one exact instruction
// for a whole vector. Eigen's own is an approximation that differs between makes of CPU and turns infinity
// into NaN.
#include "codec/policy/optimizer.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace longhaul::codec {
namespace {

// --- One pass over several arrays at once: a few elements of each are loaded, the whole step is computed on
// them in registers, and they are stored. An expression per array would go through memory once per array. ---

// Elements that are in registers at a time: two vectors of SSE, one of AVX.
constexpr int kFusedBlock = 8;

// N consecutive floats, by value. Inlined by force: a call would take them through memory.
template <int N>
using FusedBlock = Eigen::Array<float, N, 1>;

template <int N>
EIGEN_ALWAYS_INLINE FusedBlock<N> LoadBlock(const float* from) {
  return Eigen::Map<const FusedBlock<N>>(from);
}
template <int N>
EIGEN_ALWAYS_INLINE void StoreBlock(const FusedBlock<N>& values, float* to) {
  Eigen::Map<FusedBlock<N>> out(to);
  out = values;
}

// Calls step.operator()<N>(i) for elements i..i+N-1 of every block of 0..count-1, N = kFusedBlock and, for
// the last few, 1. The step loads what it needs before it stores anything.
template <typename Step>
void ForBlocks(size_t count, const Step& step) {
  size_t i = 0;
  for (; i + kFusedBlock <= count; i += kFusedBlock) step.template operator()<kFusedBlock>(i);
  for (; i < count; ++i) step.template operator()<1>(i);
}

class AggregateOnly final : public Optimizer {
 public:
  using Optimizer::Optimizer;

  void PartStep(double, double, uint64_t, std::span<const float> gradient, std::span<const float>,
                std::span<float> updated) override {
    LH_CHECK_OP(gradient.size(), ==, updated.size());
    std::copy(gradient.begin(), gradient.end(), updated.begin());
  }
  void ScaleRate(double) override {}  // there is none
};

// How far values look ahead after a part s of a step, in steps of a velocity that decays by m in each: by how
// far it goes alone until the worker that has them pushes, which in a job of alike workers is 1 - s of a step
// later (after Hakimi et al. 2019, DANA), and by the step that its push then makes, as Nesterov's do.
// Momentum and delay together diverge: of a quadratic of curvature c, with momentum 0.9 and eight workers in
// turn, lr c must be below 0.12 without it, 0.50 with the first, 0.65 with both. In synchronous rounds it
// is 3.8.
double LookAhead(double m, double share) {
  const double kept = std::pow(m, share);
  return share * kept * (1 - std::pow(m, 1 - share)) / (1 - kept) + m;
}

// Stochastic gradient descent with momentum (Sutskever et al. 2013, in the form of PyTorch's SGD):
//
//   g += weight_decay w;  v = momentum v + g;  w -= lr v,   or with nesterov  w -= lr (g + momentum v)
//
// A part s of a step, m = momentum: velocity decays by m^s and gains so much that equal gradients come to the
// same velocity, and the values look ahead by k steps of it (LookAhead below), with nesterov or without.
//
//   v' = m^s v + (1 - m^s) / (1 - m) g / s;  w -= lr (s v' + k (v' - v))
class Sgd final : public Optimizer {
 public:
  // REQUIRES: spec.kind is kSgd.
  Sgd(const OptimizerSpec& spec, uint64_t count);

  void PartStep(double steps, double share, uint64_t first, std::span<const float> gradient,
                std::span<const float> current, std::span<float> updated) override;
  void ScaleRate(double share) override;

 private:
  void LookAheadStep(double share, uint64_t first, std::span<const float> gradient,
                     std::span<const float> current, std::span<float> updated);

  const double spec_lr_;
  float lr_;
  const float momentum_;
  const float weight_decay_;
  const bool nesterov_;
};

Sgd::Sgd(const OptimizerSpec& spec, uint64_t count)
    : Optimizer(spec, count),
      spec_lr_(spec.lr),
      lr_(static_cast<float>(spec.lr)),
      momentum_(static_cast<float>(spec.momentum)),
      weight_decay_(static_cast<float>(spec.weight_decay)),
      nesterov_(spec.nesterov) {}

void Sgd::ScaleRate(double share) { lr_ = static_cast<float>(spec_lr_ * share); }

void Sgd::PartStep(double, double share, uint64_t first, std::span<const float> gradient,
                   std::span<const float> current, std::span<float> updated) {
  LH_CHECK_OP(gradient.size(), ==, updated.size());
  LH_CHECK_OP(gradient.size(), ==, current.size());
  const float* g_in = gradient.data();
  const float* w_in = current.data();
  float* out = updated.data();
  const auto decay = static_cast<float>(share * static_cast<double>(weight_decay_));
  if (arrays_.empty()) {
    return ForBlocks(gradient.size(), [&]<int N>(size_t i) {
      const FusedBlock<N> w = LoadBlock<N>(w_in + i);
      const FusedBlock<N> g = LoadBlock<N>(g_in + i) + decay * w;
      StoreBlock<N>(w - lr_ * g, out + i);
    });
  }
  LH_CHECK_OP(first + gradient.size(), <=, arrays_[0].to->size());
  const float* velocity = std::as_const(*arrays_[0].from).data() + first;
  float* new_velocity = arrays_[0].to->data() + first;
  if (share == 0) {
    std::copy_n(velocity, gradient.size(), new_velocity);
    std::copy_n(w_in, gradient.size(), out);
    return;
  }
  if (share < 1) return LookAheadStep(share, first, gradient, current, updated);
  const auto step = [&]<int N>(size_t i, bool nesterov) {
    const FusedBlock<N> w = LoadBlock<N>(w_in + i);
    const FusedBlock<N> g = LoadBlock<N>(g_in + i) + weight_decay_ * w;
    const FusedBlock<N> v = momentum_ * LoadBlock<N>(velocity + i) + g;
    StoreBlock<N>(v, new_velocity + i);
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

void Sgd::LookAheadStep(double share, uint64_t first, std::span<const float> gradient,
                        std::span<const float> current, std::span<float> updated) {
  const auto m = static_cast<double>(momentum_);
  const double kept = std::pow(m, share);
  const auto decay = static_cast<float>(share * static_cast<double>(weight_decay_));
  const auto part = static_cast<float>(share);
  const auto look = static_cast<float>(LookAhead(m, share));
  const auto keep = static_cast<float>(kept);
  const auto gain = static_cast<float>((1 - kept) / (1 - m) / share);
  const float* velocity = std::as_const(*arrays_[0].from).data() + first;
  float* new_velocity = arrays_[0].to->data() + first;
  ForBlocks(gradient.size(), [&]<int N>(size_t i) {
    const FusedBlock<N> w = LoadBlock<N>(current.data() + i);
    const FusedBlock<N> g = LoadBlock<N>(gradient.data() + i) + decay * w;
    const FusedBlock<N> before = LoadBlock<N>(velocity + i);
    const FusedBlock<N> v = keep * before + gain * g;
    StoreBlock<N>(v, new_velocity + i);
    StoreBlock<N>(w - lr_ * (part * v + look * (v - before)), updated.data() + i);
  });
}

// Adam (Kingma & Ba 2015, algorithm 1) and AdamW (Loshchilov & Hutter 2019, algorithm 2), the latter's decay
// scaled by lr as in PyTorch:
//
//   adam: g += weight_decay w      adamw: w -= lr weight_decay w
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   w -= lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps)
//
// t is the tensor's round, counted from 1: the step of a chunk needs nothing of other chunks. A part s of a
// step has the s-th power of both betas, and t grows by s; m^ and v^ are the corrected m and v:
//
//   v gets s g^2 + (1 - s) m^^2;  w -= lr (s m^ + k (m^ - what it was)) / (sqrt(v^) + eps),  k = LookAhead
//
// One worker's g^2 is larger than the square of the mean of all by the variance of what workers push. With it
// steps are too short, of n workers by up to sqrt(n); what v gets is that square's expectation.
class Adam final : public Optimizer {
 public:
  // REQUIRES: spec.kind is kAdam or kAdamW.
  Adam(const OptimizerSpec& spec, uint64_t count);

  void PartStep(double steps, double share, uint64_t first, std::span<const float> gradient,
                std::span<const float> current, std::span<float> updated) override;
  void ScaleRate(double share) override;

 private:
  // What depends on the step's number, in double since beta^t of late steps is lost in float.
  struct Correction {
    double steps = 0;
    double share = 0;
    float rate = 0;        // of m: share lr / (1 - beta1^t), in parts with what it looks ahead
    float rate_back = 0;   // parts: of m as it was
    float mean_scale = 0;  // 1 / (1 - beta1^t)
    float root_scale = 0;  // 1 / sqrt(1 - beta2^t)
    float beta1 = 0;       // to the power of share
    float beta2 = 0;
  };
  void CorrectFor(double steps, double share);
  static bool IsPart(double share) { return share > 0 && share < 1; }

  const OptimizerSpec spec_;
  double lr_;              // of the next step
  Correction correction_;  // of the last step
};

template <int N>
EIGEN_ALWAYS_INLINE FusedBlock<N> Sqrt(const FusedBlock<N>& values) {
  FusedBlock<N> roots;
  for (int k = 0; k < N; ++k) roots[k] = std::sqrt(values[k]);
  return roots;
}

Adam::Adam(const OptimizerSpec& spec, uint64_t count) : Optimizer(spec, count), spec_(spec), lr_(spec.lr) {}

void Adam::ScaleRate(double share) {
  lr_ = spec_.lr * share;
  correction_ = {};
}

void Adam::CorrectFor(double steps, double share) {
  if (steps == correction_.steps && share == correction_.share) return;
  LH_CHECK(steps > 0 || share == 0);
  constexpr double kNoSteps = 1e-9;  // less than any sum of shares
  const double t = std::max(steps, kNoSteps);
  const double before = steps - share;
  const double ahead = IsPart(share) ? lr_ * LookAhead(spec_.beta1, share) : 0;
  correction_ = {
      .steps = steps,
      .share = share,
      .rate = static_cast<float>((share * lr_ + ahead) / (1 - std::pow(spec_.beta1, t))),
      .rate_back = static_cast<float>(before > kNoSteps ? ahead / (1 - std::pow(spec_.beta1, before)) : 0),
      .mean_scale = static_cast<float>(1 / (1 - std::pow(spec_.beta1, t))),
      .root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(spec_.beta2, t))),
      .beta1 = static_cast<float>(std::pow(spec_.beta1, share)),
      .beta2 = static_cast<float>(std::pow(spec_.beta2, share))};
}

void Adam::PartStep(double steps, double share, uint64_t first, std::span<const float> gradient,
                    std::span<const float> current, std::span<float> updated) {
  LH_CHECK_OP(gradient.size(), ==, updated.size());
  LH_CHECK_OP(gradient.size(), ==, current.size());
  LH_CHECK_OP(first + gradient.size(), <=, arrays_[0].to->size());
  CorrectFor(steps, share);
  const bool decoupled = spec_.kind == OptimizerSpec::Kind::kAdamW;
  const auto l2 = static_cast<float>(decoupled ? 0 : spec_.weight_decay);
  const auto of_those = static_cast<float>(share > 0 ? 1 / share : 0);
  const auto keep = static_cast<float>(decoupled ? 1 - share * lr_ * spec_.weight_decay : 1);
  const float beta1 = correction_.beta1;
  const float beta2 = correction_.beta2;
  const auto rest1 = static_cast<float>(1 - std::pow(spec_.beta1, share));
  const auto rest2 = static_cast<float>(1 - std::pow(spec_.beta2, share));
  const auto eps = static_cast<float>(spec_.eps);
  const auto own = static_cast<float>(share);
  const auto others = static_cast<float>(1 - share);
  const float rate = correction_.rate;
  const float rate_back = correction_.rate_back;
  const float mean_scale = correction_.mean_scale;
  const float root_scale = correction_.root_scale;
  const float* mean = std::as_const(*arrays_[0].from).data() + first;
  const float* mean_square = std::as_const(*arrays_[1].from).data() + first;
  float* new_mean = arrays_[0].to->data() + first;
  float* new_mean_square = arrays_[1].to->data() + first;
  const float* g_in = gradient.data();
  const float* w_in = current.data();
  float* out = updated.data();
  const auto step = [&]<int N>(size_t i, bool part) {
    const FusedBlock<N> w = LoadBlock<N>(w_in + i);
    const FusedBlock<N> g = of_those * LoadBlock<N>(g_in + i) + l2 * w;
    const FusedBlock<N> before = LoadBlock<N>(mean + i);
    const FusedBlock<N> m = beta1 * before + rest1 * g;
    FusedBlock<N> square = g * g;
    FusedBlock<N> move = rate * m;
    if (part) {
      const FusedBlock<N> corrected = mean_scale * m;
      square = own * square + others * (corrected * corrected);
      move -= rate_back * before;
    }
    const FusedBlock<N> v = beta2 * LoadBlock<N>(mean_square + i) + rest2 * square;
    StoreBlock<N>(m, new_mean + i);
    StoreBlock<N>(v, new_mean_square + i);
    StoreBlock<N>(keep * w - move / (root_scale * Sqrt<N>(v) + eps), out + i);
  };
  if (IsPart(share)) {
    ForBlocks(gradient.size(), [&]<int N>(size_t i) { step.template operator()<N>(i, true); });
  } else {
    ForBlocks(gradient.size(), [&]<int N>(size_t i) { step.template operator()<N>(i, false); });
  }
}

}  // namespace

std::vector<std::string> StateNames(const OptimizerSpec& spec) {
  switch (spec.kind) {
    case OptimizerSpec::Kind::kAggregate:
      return {};
    case OptimizerSpec::Kind::kSgd:
      return spec.momentum > 0 ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{};
    case OptimizerSpec::Kind::kAdam:
    case OptimizerSpec::Kind::kAdamW:
      break;
  }
  return {"exp_avg", "exp_avg_sq"};
}

Optimizer::Optimizer(const OptimizerSpec& spec, uint64_t count) {
  for (std::string& name : StateNames(spec)) {
    const auto values = std::make_shared<ZeroedArray<float>>(count);
    arrays_.push_back({std::move(name), values, values});
  }
}

std::vector<Optimizer::State> Optimizer::Snapshot() const {
  std::vector<State> state;
  for (const Array& array : arrays_) state.push_back({array.name, array.to});
  return state;
}

void Optimizer::BeginRound() {
  constexpr long kOurs = 2;  // holders: from and to
  for (Array& array : arrays_) {
    array.from = array.to;
    if (array.to.use_count() > kOurs) array.to = std::make_shared<ZeroedArray<float>>(array.from->size());
  }
}

void Optimizer::Restore(std::vector<State> state) {
  LH_CHECK_OP(state.size(), ==, arrays_.size());
  for (size_t i = 0; i < arrays_.size(); ++i) {
    LH_CHECK_OP(state[i].name, ==, arrays_[i].name);
    LH_CHECK_OP(state[i].values->size(), ==, arrays_[i].to->size());
    arrays_[i].from = arrays_[i].to = std::const_pointer_cast<ZeroedArray<float>>(std::move(state[i].values));
  }
}

std::unique_ptr<Optimizer> MakeOptimizer(const OptimizerSpec& spec, uint64_t count) {
  switch (spec.kind) {
    case OptimizerSpec::Kind::kAggregate:
      return std::make_unique<AggregateOnly>(spec, count);
    case OptimizerSpec::Kind::kSgd:
      return std::make_unique<Sgd>(spec, count);
    case OptimizerSpec::Kind::kAdam:
    case OptimizerSpec::Kind::kAdamW:
      return std::make_unique<Adam>(spec, count);
  }
  return nullptr;
}

}  // namespace longhaul::codec
