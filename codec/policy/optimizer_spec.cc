#include "codec/policy/optimizer.h"

#include <array>
#include <charconv>
#include <cmath>
#include <span>
#include <vector>

#include "base/check.h"

namespace longhaul::codec {
namespace {

using Kind = OptimizerSpec::Kind;

struct Setting {
  std::string_view name;
  double OptimizerSpec::*value;
  double fallback;          // when the text does not set it
  bool always_shown;        // in the canonical text, also when zero
  double below;             // exclusive bound
  bool positive;            // zero is refused
  std::string_view sample;  // for messages
};

constexpr double kNoBound = 3.4e38;  // steps are in float32

constexpr std::array kSgd = {
    Setting{"lr", &OptimizerSpec::lr, -1, true, kNoBound, false, "0.1"},
    Setting{"momentum", &OptimizerSpec::momentum, 0, false, 1, false, "0.9"},
    Setting{"weight_decay", &OptimizerSpec::weight_decay, 0, false, kNoBound, false, "0.0001"},
};

constexpr std::array<Setting, 5> Adam(double weight_decay) {
  return {Setting{"lr", &OptimizerSpec::lr, -1, true, kNoBound, false, "0.001"},
          Setting{"beta1", &OptimizerSpec::beta1, 0.9, true, 1, false, "0.9"},
          Setting{"beta2", &OptimizerSpec::beta2, 0.999, true, 1, false, "0.999"},
          Setting{"eps", &OptimizerSpec::eps, 1e-8, true, kNoBound, true, "1e-8"},
          Setting{"weight_decay", &OptimizerSpec::weight_decay, weight_decay, weight_decay != 0, kNoBound,
                  false, "0.01"}};
}
constexpr auto kAdam = Adam(0);
constexpr auto kAdamW = Adam(0.01);

// What is known of one kind.
struct Kindred {
  std::string_view name;
  Kind kind;
  std::span<const Setting> settings;
  bool has_nesterov;
};
constexpr std::array kKinds = {Kindred{"sgd", Kind::kSgd, kSgd, true},
                               Kindred{"adam", Kind::kAdam, kAdam, false},
                               Kindred{"adamw", Kind::kAdamW, kAdamW, false}};

const Kindred* Find(std::string_view name) {
  for (const Kindred& kind : kKinds) {
    if (kind.name == name) return &kind;
  }
  return nullptr;
}

const Kindred& Find(Kind of) {
  for (const Kindred& kind : kKinds) {
    if (kind.kind == of) return kind;
  }
  LH_CHECK(false);
  return kKinds[0];
}

std::string Number(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  return std::string(text, end);
}

Status Bad(std::string_view text, const std::string& why) {
  return Status(StatusCode::kInvalidArgument, "optimizer \"" + std::string(text) + "\": " + why);
}

bool ParseNumber(std::string_view text, double* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(*out);
}

std::string Known(const Kindred& kind) {
  std::string known;
  for (const Setting& setting : kind.settings) {
    known += (known.empty() ? "" : ", ") + std::string(setting.name);
  }
  return known + (kind.has_nesterov ? ", nesterov" : "");
}

// Applies one "name=value" (or flag) of the list; an empty string, or what is wrong.
std::string ApplySetting(const Kindred& kind, std::string_view words, OptimizerSpec* spec,
                         std::vector<std::string>* seen) {
  const size_t equals = words.find('=');
  const std::string name(words.substr(0, equals));
  for (const std::string& before : *seen) {
    if (before == name) return name + " is given twice";
  }
  seen->push_back(name);
  if (kind.has_nesterov && words == "nesterov") {
    spec->nesterov = true;
    return "";
  }
  for (const Setting& setting : kind.settings) {
    if (setting.name != name) continue;
    double& value = spec->*setting.value;
    if (equals == std::string_view::npos || !ParseNumber(words.substr(equals + 1), &value)) {
      return name + " needs a finite number, for example " + name + "=" + std::string(setting.sample);
    }
    if (value < 0) return name + " must not be negative";
    // In float32, where a tiny number is zero.
    if (setting.positive && static_cast<float>(value) == 0) return name + " must be above 0";
    if (value >= setting.below) return name + " must be below " + Number(setting.below);
    return "";
  }
  return "unknown setting \"" + name + "\" (known: " + Known(kind) + ")";
}

}  // namespace

std::string OptimizerSpec::ToString() const {
  if (kind == Kind::kAggregate) return "aggregate";
  const Kindred& kindred = Find(kind);
  std::string text(kindred.name);
  for (const Setting& setting : kindred.settings) {
    const double value = this->*setting.value;
    if (!setting.always_shown && value == 0) continue;
    text += (text == kindred.name ? ":" : ",") + std::string(setting.name) + "=" + Number(value);
    if (setting.name == "momentum" && nesterov) text += ",nesterov";
  }
  return text;
}

Result<OptimizerSpec> ParseOptimizer(std::string_view text) {
  OptimizerSpec spec;
  if (text == "aggregate") return spec;
  const size_t colon = text.find(':');
  const Kindred* kind = Find(text.substr(0, colon));
  if (kind == nullptr) {
    return Bad(text,
               "unknown; known are aggregate, sgd:lr=0.1[,momentum=0.9][,nesterov][,weight_decay=0.0001], "
               "adam:lr=0.001[,beta1=0.9][,beta2=0.999][,eps=1e-8][,weight_decay=0] and "
               "adamw:lr=0.001[,... as adam, weight_decay 0.01 unless given]");
  }
  spec.kind = kind->kind;
  for (const Setting& setting : kind->settings) spec.*setting.value = setting.fallback;
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  std::vector<std::string> seen;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string wrong = ApplySetting(*kind, rest.substr(0, comma), &spec, &seen);
    if (!wrong.empty()) return Bad(text, wrong);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (spec.lr < 0) {
    return Bad(text, "lr is missing, for example " + std::string(kind->name) +
                         ":lr=" + std::string(kind->settings[0].sample));
  }
  if (spec.nesterov && spec.momentum == 0) return Bad(text, "nesterov needs momentum");
  return spec;
}

}  // namespace longhaul::codec
