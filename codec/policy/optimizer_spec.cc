#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "codec/policy/optimizer.h"

namespace longhaul::codec {
namespace {

constexpr double kNoBound = 3.4e38;  // steps are in float32
constexpr size_t kMaxNameBytes = 32;

std::span<const longhaul_setting> SettingsOf(const longhaul_optimizer& rule) {
  return {rule.settings, rule.setting_count};
}
bool Has(const longhaul_setting& setting, uint32_t flag) { return (setting.flags & flag) != 0; }
double BoundOf(const longhaul_setting& setting) { return setting.below > 0 ? setting.below : kNoBound; }

std::string Number(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  return std::string(text, end);
}

Status Bad(std::string_view text, const std::string& why, StatusCode code = StatusCode::kInvalidArgument) {
  return Status(code, "optimizer \"" + std::string(text) + "\": " + why);
}

bool ParseNumber(std::string_view text, double* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(*out);
}

std::string KnownSettings(const longhaul_optimizer& rule) {
  std::string known;
  for (const longhaul_setting& setting : SettingsOf(rule))
    known += (known.empty() ? "" : ", ") + std::string(setting.name);
  return known;
}

// "sgd:lr=0.1[,momentum=0.9][,nesterov]".
std::string Usage(const longhaul_optimizer& rule) {
  std::string text = rule.name;
  for (const longhaul_setting& setting : SettingsOf(rule)) {
    const bool required = Has(setting, LONGHAUL_SETTING_REQUIRED);
    const bool first = text == rule.name;
    std::string words = (first ? ":" : ",") + std::string(setting.name);
    if (!Has(setting, LONGHAUL_SETTING_FLAG)) words += "=" + std::string(setting.sample);
    text += required ? words : "[" + words + "]";
  }
  return text;
}

// Why this value cannot be; empty: it can.
std::string WhyNot(const longhaul_setting& setting, double value) {
  const std::string name = setting.name;
  if (value < 0) return name + " must not be negative";
  // In float32, where a tiny number is zero.
  if (Has(setting, LONGHAUL_SETTING_POSITIVE) && static_cast<float>(value) == 0)
    return name + " must be above 0";
  if (!(value < BoundOf(setting))) return name + " must be below " + Number(BoundOf(setting));
  return "";
}

// Applies one "name=value" (or flag) of the list; an empty string, or what is wrong.
std::string ApplySetting(std::string_view words, OptimizerSpec* spec, std::vector<bool>* seen) {
  const size_t equals = words.find('=');
  const std::string name(words.substr(0, equals));
  for (size_t i = 0; i < seen->size(); ++i) {
    const longhaul_setting& setting = spec->rule->settings[i];
    if (name != setting.name) continue;
    if ((*seen)[i]) return name + " is given twice";
    (*seen)[i] = true;
    if (Has(setting, LONGHAUL_SETTING_FLAG)) {
      if (equals != std::string_view::npos) return name + " has no value";
      spec->settings[i] = 1;
      return "";
    }
    if (equals == std::string_view::npos || !ParseNumber(words.substr(equals + 1), &spec->settings[i])) {
      return name + " needs a finite number, for example " + name + "=" + std::string(setting.sample);
    }
    return WhyNot(setting, spec->settings[i]);
  }
  return "unknown setting \"" + name + "\" (known: " + KnownSettings(*spec->rule) + ")";
}

bool IsName(const char* name) {
  if (name == nullptr) return false;
  const std::string_view text(name, std::char_traits<char>::length(name));
  const auto fits = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  return !text.empty() && text.size() <= kMaxNameBytes && std::ranges::all_of(text, fits);
}

// Whether all are names, each another one.
bool AreNames(std::vector<std::string> names) {
  if (!std::ranges::all_of(names, [](const std::string& name) { return IsName(name.c_str()); })) return false;
  std::ranges::sort(names);
  return std::ranges::adjacent_find(names) == names.end();
}

std::string WhyNoSettings(const longhaul_optimizer& rule) {
  if (rule.setting_count > LONGHAUL_MAX_SETTINGS || (rule.setting_count > 0 && rule.settings == nullptr))
    return "it has a table of 0..32 settings";
  std::vector<std::string> names;
  for (const longhaul_setting& setting : SettingsOf(rule)) {
    const bool flag = Has(setting, LONGHAUL_SETTING_FLAG);
    names.emplace_back(setting.name == nullptr ? "" : setting.name);
    if (!flag && (setting.sample == nullptr || !std::isfinite(setting.fallback) ||
                  !(Has(setting, LONGHAUL_SETTING_REQUIRED) || WhyNot(setting, setting.fallback).empty())))
      return "its setting \"" + names.back() +
             "\" has no sample, or a fallback that is out of its own bounds";
  }
  return AreNames(names) ? "" : "the names of its settings are not all different, of 1..32 of a-z 0-9 _";
}

}  // namespace

double OptimizerSpec::Get(std::string_view setting) const {
  for (size_t i = 0; i < settings.size(); ++i) {
    if (rule->settings[i].name == setting) return settings[i];
  }
  return 0;
}

std::string OptimizerSpec::ToString() const {
  std::string text(name());
  for (size_t i = 0; i < settings.size(); ++i) {
    const longhaul_setting& setting = rule->settings[i];
    // What holds without being said.
    if (settings[i] == 0 && setting.fallback == 0 && !Has(setting, LONGHAUL_SETTING_REQUIRED)) continue;
    text += (text == name() ? ":" : ",") + std::string(setting.name);
    if (!Has(setting, LONGHAUL_SETTING_FLAG)) text += "=" + Number(settings[i]);
  }
  return text;
}

Rules::Rules() : known_(BuiltInOptimizers().begin(), BuiltInOptimizers().end()) {}

const longhaul_optimizer* Rules::Find(std::string_view name) const {
  const auto found =
      std::ranges::find_if(known_, [name](const longhaul_optimizer* rule) { return rule->name == name; });
  return found == known_.end() ? nullptr : *found;
}

Status Rules::Check(const longhaul_optimizer* rule) const {
  const std::string name = rule != nullptr && rule->name != nullptr ? rule->name : "";
  const auto bad = [&](const std::string& why) {
    return Status(StatusCode::kInvalidArgument, "optimizer \"" + name + "\" of a plug-in: " + why);
  };
  if (!IsName(name.c_str())) return bad("its name is not 1..32 of a-z 0-9 _");
  if (rule->step == nullptr) return bad("it has no step function");
  if (const std::string why = WhyNoSettings(*rule); !why.empty()) return bad(why);
  if (rule->state_count > LONGHAUL_MAX_STATE || (rule->state_count > 0 && rule->state == nullptr))
    return bad("it keeps 0..8 arrays");
  std::vector<std::string> state;
  for (uint32_t i = 0; i < rule->state_count; ++i)
    state.emplace_back(rule->state[i] == nullptr ? "" : rule->state[i]);
  if (!AreNames(state)) return bad("the names of its arrays are not all different, of 1..32 of a-z 0-9 _");
  if (name == "aggregate" || Find(name) != nullptr)
    return {StatusCode::kAlreadyExists, "optimizer \"" + name + "\" of a plug-in: the name is taken"};
  return {};
}

Status Rules::Check(const longhaul_aggregation* rule) const {
  const std::string name = rule != nullptr && rule->name != nullptr ? rule->name : "";
  const std::string who = "aggregation \"" + name + "\" of a plug-in: ";
  if (!IsName(name.c_str()))
    return {StatusCode::kInvalidArgument, who + "its name is not 1..32 of a-z 0-9 _"};
  if (rule->aggregate == nullptr) return {StatusCode::kInvalidArgument, who + "it has no function"};
  if (FindAggregation(name) != nullptr) return {StatusCode::kAlreadyExists, who + "the name is taken"};
  return {};
}

const longhaul_aggregation* Rules::FindAggregation(std::string_view name) const {
  const auto found = std::ranges::find_if(
      aggregations_, [name](const longhaul_aggregation* rule) { return rule->name == name; });
  return found == aggregations_.end() ? nullptr : *found;
}

Status Rules::Add(const longhaul_plugin* plugin) {
  if (plugin == nullptr) return {StatusCode::kInvalidArgument, "a plug-in is null"};
  if (plugin->api != LONGHAUL_PLUGIN_API) {
    return {StatusCode::kVersionMismatch,
            "the plug-in is written for version " + std::to_string(plugin->api) +
                " of longhaul/plugin_api.h, and this is version " + std::to_string(LONGHAUL_PLUGIN_API)};
  }
  if (plugin->optimizer_count + plugin->aggregation_count == 0 ||
      (plugin->optimizer_count > 0 && plugin->optimizers == nullptr) ||
      (plugin->aggregation_count > 0 && plugin->aggregations == nullptr))
    return {StatusCode::kInvalidArgument, "the plug-in has no optimizer and no aggregation"};
  Rules with = *this;
  for (uint32_t i = 0; i < plugin->optimizer_count; ++i) {
    if (Status status = with.Check(plugin->optimizers[i]); !status.ok()) return status;
    with.known_.push_back(plugin->optimizers[i]);
  }
  for (uint32_t i = 0; i < plugin->aggregation_count; ++i) {
    if (Status status = with.Check(plugin->aggregations[i]); !status.ok()) return status;
    with.aggregations_.push_back(plugin->aggregations[i]);
  }
  *this = std::move(with);
  return {};
}

size_t Rules::MostState() const {
  size_t most = 0;
  for (const longhaul_optimizer* rule : known_) most = std::max<size_t>(most, rule->state_count);
  return most;
}

Result<OptimizerSpec> Rules::Parse(std::string_view text) const {
  OptimizerSpec spec;
  if (text == "aggregate") return spec;
  const size_t colon = text.find(':');
  spec.rule = Find(text.substr(0, colon));
  if (spec.rule == nullptr) {
    std::string known = "unknown; known are aggregate";
    for (const longhaul_optimizer* rule : known_) known += ", " + Usage(*rule);
    return Bad(text, known, StatusCode::kNotFound);
  }
  for (const longhaul_setting& setting : SettingsOf(*spec.rule))
    spec.settings.push_back(Has(setting, LONGHAUL_SETTING_FLAG) ? 0 : setting.fallback);
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  std::vector<bool> seen(spec.settings.size());
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string wrong = ApplySetting(rest.substr(0, comma), &spec, &seen);
    if (!wrong.empty()) return Bad(text, wrong);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  for (size_t i = 0; i < seen.size(); ++i) {
    const longhaul_setting& setting = spec.rule->settings[i];
    if (seen[i] || !Has(setting, LONGHAUL_SETTING_REQUIRED)) continue;
    return Bad(text, std::string(setting.name) + " is missing, for example " + spec.rule->name + ":" +
                         setting.name + (setting.sample == nullptr ? "" : "=" + std::string(setting.sample)));
  }
  const char* why = spec.rule->check == nullptr ? nullptr : spec.rule->check(spec.settings.data());
  if (why != nullptr) return Bad(text, why);
  return spec;
}

Result<OptimizerSpec> ParseOptimizer(std::string_view text) { return Rules().Parse(text); }

std::vector<std::string> StateNames(const OptimizerSpec& spec) {
  if (spec.aggregates()) return {};
  const longhaul_optimizer& rule = *spec.rule;
  const uint32_t wanted = rule.states == nullptr ? rule.state_count : rule.states(spec.settings.data());
  return {rule.state, rule.state + std::min(wanted, rule.state_count)};
}

bool MayKeep(std::string_view optimizer, const std::vector<std::string>& state) {
  const auto spec = ParseOptimizer(optimizer);
  if (spec.ok()) return StateNames(*spec) == state;
  return spec.status().code() == StatusCode::kNotFound && state.size() <= LONGHAUL_MAX_STATE &&
         AreNames(state);
}

}  // namespace longhaul::codec
