// The built-in optimizers, and the state of any. Compiled with -fno-math-errno (CMakeLists.txt): sqrt is then
// one exact instruction for a whole vector. Eigen's own is an approximation that differs between makes of CPU
// and turns infinity into NaN.
#include "codec/policy/optimizer.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <iterator>
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

float Float(double value) { return static_cast<float>(value); }

bool IsPart(double share) { return share > 0 && share < 1; }

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
struct Sgd {
  enum Setting { kLr, kMomentum, kNesterov, kWeightDecay };
  enum Prepared { kKeep, kGain, kLook };

  static constexpr longhaul_setting kSettings[] = {
      {"lr", "0.1", 0, 0, LONGHAUL_SETTING_REQUIRED},
      {"momentum", "0.9", 0, 1, 0},
      {"nesterov", nullptr, 0, 0, LONGHAUL_SETTING_FLAG},
      {"weight_decay", "0.0001", 0, 0, 0},
  };
  static constexpr const char* kState[] = {"momentum_buffer"};

  static uint32_t States(const double* settings) { return settings[kMomentum] > 0 ? 1 : 0; }
  static const char* Check(const double* settings) {
    return settings[kNesterov] != 0 && settings[kMomentum] == 0 ? "nesterov needs momentum" : nullptr;
  }
  static void Prepare(const longhaul_step* s, double* prepared) {
    if (!IsPart(s->share)) return;
    const auto m = static_cast<double>(Float(s->settings[kMomentum]));
    const double kept = std::pow(m, s->share);
    prepared[kKeep] = kept;
    prepared[kGain] = (1 - kept) / (1 - m) / s->share;
    prepared[kLook] = LookAhead(m, s->share);
  }
  static int32_t Step(const longhaul_step* s);

 private:
  static int32_t LookAheadStep(const longhaul_step* s, float lr, float decay);
};

int32_t Sgd::Step(const longhaul_step* s) {
  const float lr = Float(s->settings[kLr] * s->rate);
  const float decay = Float(s->share * static_cast<double>(Float(s->settings[kWeightDecay])));
  const float momentum = Float(s->settings[kMomentum]);
  if (!(s->settings[kMomentum] > 0)) {
    ForBlocks(s->count, [&]<int N>(size_t i) {
      const FusedBlock<N> w = LoadBlock<N>(s->values + i);
      const FusedBlock<N> g = LoadBlock<N>(s->gradient + i) + decay * w;
      StoreBlock<N>(w - lr * g, s->updated + i);
    });
    return 0;
  }
  const float* velocity = s->state[0];
  float* new_velocity = s->new_state[0];
  if (s->share == 0) {
    std::copy_n(velocity, s->count, new_velocity);
    std::copy_n(s->values, s->count, s->updated);
    return 0;
  }
  if (IsPart(s->share)) return LookAheadStep(s, lr, decay);
  const auto step = [&]<int N>(size_t i, bool nesterov) {
    const FusedBlock<N> w = LoadBlock<N>(s->values + i);
    const FusedBlock<N> g = LoadBlock<N>(s->gradient + i) + decay * w;
    const FusedBlock<N> v = momentum * LoadBlock<N>(velocity + i) + g;
    StoreBlock<N>(v, new_velocity + i);
    if (nesterov) {
      StoreBlock<N>(w - lr * (g + momentum * v), s->updated + i);
    } else {
      StoreBlock<N>(w - lr * v, s->updated + i);
    }
  };
  if (s->settings[kNesterov] != 0) {
    ForBlocks(s->count, [&]<int N>(size_t i) { step.template operator()<N>(i, true); });
  } else {
    ForBlocks(s->count, [&]<int N>(size_t i) { step.template operator()<N>(i, false); });
  }
  return 0;
}

int32_t Sgd::LookAheadStep(const longhaul_step* s, float lr, float decay) {
  const float part = Float(s->share);
  const float look = Float(s->prepared[kLook]);
  const float keep = Float(s->prepared[kKeep]);
  const float gain = Float(s->prepared[kGain]);
  ForBlocks(s->count, [&]<int N>(size_t i) {
    const FusedBlock<N> w = LoadBlock<N>(s->values + i);
    const FusedBlock<N> g = LoadBlock<N>(s->gradient + i) + decay * w;
    const FusedBlock<N> before = LoadBlock<N>(s->state[0] + i);
    const FusedBlock<N> v = keep * before + gain * g;
    StoreBlock<N>(v, s->new_state[0] + i);
    StoreBlock<N>(w - lr * (part * v + look * (v - before)), s->updated + i);
  });
  return 0;
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
struct Adam {
  enum Setting { kLr, kBeta1, kBeta2, kEps, kWeightDecay };
  // What depends on the step's number, in double since beta^t of late steps is lost in float.
  enum Prepared {
    kRate,       // of m: share lr / (1 - beta1^t), in parts with what it looks ahead
    kRateBack,   // parts: of m as it was
    kMeanScale,  // 1 / (1 - beta1^t)
    kRootScale,  // 1 / sqrt(1 - beta2^t)
    kKeep1,      // beta1 to the power of share
    kKeep2
  };

  static constexpr std::array<longhaul_setting, 5> Settings(double weight_decay) {
    return {{{"lr", "0.001", 0, 0, LONGHAUL_SETTING_REQUIRED},
             {"beta1", "0.9", 0.9, 1, 0},
             {"beta2", "0.999", 0.999, 1, 0},
             {"eps", "1e-8", 1e-8, 0, LONGHAUL_SETTING_POSITIVE},
             {"weight_decay", "0.01", weight_decay, 0, 0}}};
  }
  static constexpr const char* kState[] = {"exp_avg", "exp_avg_sq"};

  static void Prepare(const longhaul_step* s, double* prepared);
  template <bool kDecoupled>
  static int32_t Step(const longhaul_step* s);
};

template <int N>
EIGEN_ALWAYS_INLINE FusedBlock<N> Sqrt(const FusedBlock<N>& values) {
  FusedBlock<N> roots;
  for (int k = 0; k < N; ++k) roots[k] = std::sqrt(values[k]);
  return roots;
}

void Adam::Prepare(const longhaul_step* s, double* prepared) {
  constexpr double kNoSteps = 1e-9;  // less than any sum of shares
  const double lr = s->settings[kLr] * s->rate;
  const double beta1 = s->settings[kBeta1];
  const double beta2 = s->settings[kBeta2];
  const double t = std::max(s->steps, kNoSteps);
  const double before = s->steps - s->share;
  const double ahead = IsPart(s->share) ? lr * LookAhead(beta1, s->share) : 0;
  prepared[kRate] = (s->share * lr + ahead) / (1 - std::pow(beta1, t));
  prepared[kRateBack] = before > kNoSteps ? ahead / (1 - std::pow(beta1, before)) : 0;
  prepared[kMeanScale] = 1 / (1 - std::pow(beta1, t));
  prepared[kRootScale] = 1 / std::sqrt(1 - std::pow(beta2, t));
  prepared[kKeep1] = std::pow(beta1, s->share);
  prepared[kKeep2] = std::pow(beta2, s->share);
}

template <bool kDecoupled>
int32_t Adam::Step(const longhaul_step* s) {
  const double lr = s->settings[kLr] * s->rate;
  const double weight_decay = s->settings[kWeightDecay];
  const float l2 = Float(kDecoupled ? 0 : weight_decay);
  const float of_those = Float(s->share > 0 ? 1 / s->share : 0);
  const float keep = Float(kDecoupled ? 1 - s->share * lr * weight_decay : 1);
  const float beta1 = Float(s->prepared[kKeep1]);
  const float beta2 = Float(s->prepared[kKeep2]);
  const float rest1 = Float(1 - s->prepared[kKeep1]);
  const float rest2 = Float(1 - s->prepared[kKeep2]);
  const float eps = Float(s->settings[kEps]);
  const float own = Float(s->share);
  const float others = Float(1 - s->share);
  const float rate = Float(s->prepared[kRate]);
  const float rate_back = Float(s->prepared[kRateBack]);
  const float mean_scale = Float(s->prepared[kMeanScale]);
  const float root_scale = Float(s->prepared[kRootScale]);
  const auto step = [&]<int N>(size_t i, bool part) {
    const FusedBlock<N> w = LoadBlock<N>(s->values + i);
    const FusedBlock<N> g = of_those * LoadBlock<N>(s->gradient + i) + l2 * w;
    const FusedBlock<N> before = LoadBlock<N>(s->state[0] + i);
    const FusedBlock<N> m = beta1 * before + rest1 * g;
    FusedBlock<N> square = g * g;
    FusedBlock<N> move = rate * m;
    if (part) {
      const FusedBlock<N> corrected = mean_scale * m;
      square = own * square + others * (corrected * corrected);
      move -= rate_back * before;
    }
    const FusedBlock<N> v = beta2 * LoadBlock<N>(s->state[1] + i) + rest2 * square;
    StoreBlock<N>(m, s->new_state[0] + i);
    StoreBlock<N>(v, s->new_state[1] + i);
    StoreBlock<N>(keep * w - move / (root_scale * Sqrt<N>(v) + eps), s->updated + i);
  };
  if (IsPart(s->share)) {
    ForBlocks(s->count, [&]<int N>(size_t i) { step.template operator()<N>(i, true); });
  } else {
    ForBlocks(s->count, [&]<int N>(size_t i) { step.template operator()<N>(i, false); });
  }
  return 0;
}

constexpr auto kAdamSettings = Adam::Settings(0);
constexpr auto kAdamWSettings = Adam::Settings(0.01);

constexpr longhaul_optimizer kSgd = {.name = "sgd",
                                     .settings = Sgd::kSettings,
                                     .setting_count = std::size(Sgd::kSettings),
                                     .state = Sgd::kState,
                                     .state_count = std::size(Sgd::kState),
                                     .flags = LONGHAUL_OPTIMIZER_PARTS,
                                     .states = Sgd::States,
                                     .check = Sgd::Check,
                                     .prepare = Sgd::Prepare,
                                     .step = Sgd::Step};

template <bool kDecoupled>
constexpr longhaul_optimizer AdamRule(const char* name) {
  return {.name = name,
          .settings = (kDecoupled ? kAdamWSettings : kAdamSettings).data(),
          .setting_count = kAdamSettings.size(),
          .state = Adam::kState,
          .state_count = std::size(Adam::kState),
          .flags = LONGHAUL_OPTIMIZER_PARTS,
          .states = nullptr,
          .check = nullptr,
          .prepare = Adam::Prepare,
          .step = Adam::Step<kDecoupled>};
}
constexpr longhaul_optimizer kAdam = AdamRule<false>("adam");
constexpr longhaul_optimizer kAdamW = AdamRule<true>("adamw");

constexpr const longhaul_optimizer* kBuiltIn[] = {&kSgd, &kAdam, &kAdamW};

}  // namespace

std::span<const longhaul_optimizer* const> BuiltInOptimizers() { return kBuiltIn; }

Optimizer::Optimizer(OptimizerSpec spec, uint64_t count) : spec_(std::move(spec)) {
  for (std::string& name : StateNames(spec_)) {
    const auto values = std::make_shared<ZeroedArray<float>>(count);
    arrays_.push_back({std::move(name), values, values});
  }
  step_.settings = spec_.settings.data();
  ScaleRate(1);
}

void Optimizer::ScaleRate(double share) {
  step_.rate = share;
  step_.steps = -1;  // nothing is prepared for this rate
}

// Not for each chunk: a power takes as long as ten elements.
void Optimizer::Prepare(double steps, double share) {
  if (steps == step_.steps && share == step_.share) return;
  LH_CHECK(steps > 0 || share == 0);
  step_.steps = steps;
  step_.share = share;
  prepared_ = {};
  if (spec_.rule->prepare != nullptr) spec_.rule->prepare(&step_, prepared_.data());
}

int32_t Optimizer::PartStep(double steps, double share, uint64_t first, std::span<const float> gradient,
                            std::span<const float> current, std::span<float> updated) {
  LH_CHECK_OP(gradient.size(), ==, updated.size());
  if (spec_.aggregates()) {
    std::copy(gradient.begin(), gradient.end(), updated.begin());
    return 0;
  }
  LH_CHECK_OP(gradient.size(), ==, current.size());
  std::array<const float*, LONGHAUL_MAX_STATE> state = {};
  std::array<float*, LONGHAUL_MAX_STATE> new_state = {};
  for (size_t i = 0; i < arrays_.size(); ++i) {
    LH_CHECK_OP(first + gradient.size(), <=, arrays_[i].to->size());
    state[i] = std::as_const(*arrays_[i].from).data() + first;
    new_state[i] = arrays_[i].to->data() + first;
  }
  try {
    Prepare(steps, share);
    longhaul_step step = step_;
    step.prepared = prepared_.data();
    step.first = first;
    step.count = gradient.size();
    step.gradient = gradient.data();
    step.values = current.data();
    step.updated = updated.data();
    step.state = state.data();
    step.new_state = new_state.data();
    return spec_.rule->step(&step);
  } catch (...) {  // a plug-in's, in C++
    return kThrew;
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
  return std::make_unique<Optimizer>(spec, count);
}

}  // namespace longhaul::codec
