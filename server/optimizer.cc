#include "server/optimizer.h"

#include <Eigen/Core>
#include <charconv>
#include <cmath>
#include <vector>

#include "base/check.h"

namespace longhaul::server {
namespace {

using ConstArray = Eigen::Map<const Eigen::ArrayXf>;
using Array = Eigen::Map<Eigen::ArrayXf>;

ConstArray Map(std::span<const float> values) {
  return {values.data(), static_cast<Eigen::Index>(values.size())};
}
Array Map(std::span<float> values) { return {values.data(), static_cast<Eigen::Index>(values.size())}; }

class AggregateOnly final : public Optimizer {
 public:
  void Step(uint64_t, std::span<const float> gradient, std::span<const float>,
            std::span<float> updated) override {
    LH_CHECK_OP(gradient.size(), ==, updated.size());
    Map(updated) = Map(gradient);
  }
};

// v = momentum v + g;  w -= lr (nesterov ? g + momentum v : v), with g = gradient + weight_decay w: the form
// that PyTorch's SGD has, so that learning rates carry over.
class Sgd final : public Optimizer {
 public:
  Sgd(const OptimizerSpec& spec, uint64_t count) : spec_(spec) {
    if (spec.momentum > 0) velocity_.resize(count, 0.0f);
  }

  void Step(uint64_t first, std::span<const float> gradient, std::span<const float> current,
            std::span<float> updated) override {
    LH_CHECK_OP(gradient.size(), ==, updated.size());
    LH_CHECK_OP(gradient.size(), ==, current.size());
    const auto w = Map(current);
    const auto g = Map(gradient) + spec_.weight_decay * w;
    if (velocity_.empty()) {
      Map(updated) = w - spec_.lr * g;
      return;
    }
    LH_CHECK_OP(first + gradient.size(), <=, velocity_.size());
    Array v = Map(std::span(velocity_).subspan(first, gradient.size()));
    v = spec_.momentum * v + g;
    if (spec_.nesterov) {
      Map(updated) = w - spec_.lr * (g + spec_.momentum * v);
    } else {
      Map(updated) = w - spec_.lr * v;
    }
  }

 private:
  OptimizerSpec spec_;
  std::vector<float> velocity_;
};

Status Bad(std::string_view text, const std::string& why) {
  return Status(StatusCode::kInvalidArgument, "optimizer \"" + std::string(text) + "\": " + why);
}

bool ParseNumber(std::string_view text, float* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(*out);
}

// Applies one "name=value" (or flag) of the list; an empty string, or what is wrong.
std::string ApplySetting(std::string_view setting, OptimizerSpec* spec, bool* has_lr) {
  const size_t equals = setting.find('=');
  const std::string name(setting.substr(0, equals));
  if (name == "nesterov" && equals == std::string_view::npos) {
    spec->nesterov = true;
    return "";
  }
  float* target = name == "lr"             ? &spec->lr
                  : name == "momentum"     ? &spec->momentum
                  : name == "weight_decay" ? &spec->weight_decay
                                           : nullptr;
  if (target == nullptr) {
    return "unknown setting \"" + name + "\" (known: lr, momentum, nesterov, weight_decay)";
  }
  if (equals == std::string_view::npos || !ParseNumber(setting.substr(equals + 1), target)) {
    return name + " needs a finite number, for example " + name + "=0.1";
  }
  if (*target < 0) return name + " must not be negative";
  if (target == &spec->lr) *has_lr = true;
  return "";
}

std::string Number(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  return std::string(text, end);
}

}  // namespace

std::string OptimizerSpec::ToString() const {
  if (kind == Kind::kAggregate) return "aggregate";
  std::string text = "sgd:lr=" + Number(lr);
  if (momentum > 0) text += ",momentum=" + Number(momentum);
  if (nesterov) text += ",nesterov";
  if (weight_decay > 0) text += ",weight_decay=" + Number(weight_decay);
  return text;
}

Result<OptimizerSpec> ParseOptimizer(std::string_view text) {
  OptimizerSpec spec;
  if (text == "aggregate") return spec;
  const size_t colon = text.find(':');
  if (text.substr(0, colon) != "sgd") {
    return Bad(text,
               "unknown; known are aggregate and sgd:lr=0.1[,momentum=0.9][,nesterov][,weight_decay=0.0001]");
  }
  spec.kind = OptimizerSpec::Kind::kSgd;
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  bool has_lr = false;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string wrong = ApplySetting(rest.substr(0, comma), &spec, &has_lr);
    if (!wrong.empty()) return Bad(text, wrong);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (!has_lr) return Bad(text, "lr is missing, for example sgd:lr=0.1");
  if (spec.momentum >= 1) return Bad(text, "momentum must be below 1");
  if (spec.nesterov && spec.momentum == 0) return Bad(text, "nesterov needs momentum");
  return spec;
}

std::unique_ptr<Optimizer> MakeOptimizer(const OptimizerSpec& spec, uint64_t count) {
  if (spec.kind == OptimizerSpec::Kind::kSgd) return std::make_unique<Sgd>(spec, count);
  return std::make_unique<AggregateOnly>();
}

}  // namespace longhaul::server
