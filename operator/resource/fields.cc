#include "operator/resource/fields.h"

#include <utility>
#include <vector>

namespace longhaul::kube {
namespace {

const Json kNull;

bool IsLowerOrDigit(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

}  // namespace

bool DeeperThan(const Json& value, int depth) {
  std::vector<std::pair<const Json*, int>> open = {{&value, 1}};
  while (!open.empty()) {
    const auto [at, level] = open.back();
    open.pop_back();
    if (!at->is_structured()) continue;
    if (level > depth) return true;
    for (const Json& child : *at) open.emplace_back(&child, level + 1);
  }
  return false;
}

const Json& At(const Json& value, std::initializer_list<std::string_view> path) {
  const Json* at = &value;
  for (const std::string_view key : path) {
    if (!at->is_object()) return kNull;
    const auto found = at->find(key);
    if (found == at->end()) return kNull;
    at = &*found;
  }
  return *at;
}

std::string TextAt(const Json& value, std::initializer_list<std::string_view> path) {
  const Json& found = At(value, path);
  return found.is_string() ? found.get_ref<const std::string&>() : std::string();
}

int64_t NumberAt(const Json& value, std::initializer_list<std::string_view> path, int64_t otherwise) {
  const Json& found = At(value, path);
  if (!found.is_number_integer()) return otherwise;
  if (found.is_number_unsigned() && found.get<uint64_t>() > uint64_t{INT64_MAX}) return otherwise;
  return found.get<int64_t>();
}

std::string Dump(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

bool IsLabel(std::string_view text) {
  if (text.empty() || text.size() > 63) return false;
  for (const char c : text) {
    if (!IsLowerOrDigit(c) && c != '-') return false;
  }
  return text.front() != '-' && text.back() != '-';
}

bool IsSubdomain(std::string_view text) {
  if (text.empty() || text.size() > 253) return false;
  while (true) {
    const size_t dot = text.find('.');
    if (!IsLabel(text.substr(0, dot))) return false;
    if (dot == std::string_view::npos) return true;
    text.remove_prefix(dot + 1);
  }
}

Fields::Fields(const Json& object, std::string path, Status* status)
    : path_(std::move(path)), status_(status) {
  if (object.is_object()) {
    object_ = &object;
  } else if (!object.is_null()) {
    *this = Fields(kNull, path_, status);
    if (status_->ok()) *status_ = {StatusCode::kInvalidArgument, path_ + ": is no object: give it fields"};
  }
}

std::string Fields::PathOf(std::string_view key) const { return path_ + "." + std::string(key); }

const Json* Fields::Find(std::string_view key) {
  known_.emplace(key);
  const Json& found = object_ == nullptr ? kNull : At(*object_, {key});
  return found.is_null() ? nullptr : &found;
}

bool Fields::Has(std::string_view key) { return Find(key) != nullptr; }

const Json& Fields::Any(std::string_view key) {
  const Json* found = Find(key);
  return found == nullptr ? kNull : *found;
}

void Fields::Fail(std::string_view key, std::string_view message) {
  if (!status_->ok()) return;
  *status_ = {StatusCode::kInvalidArgument, PathOf(key) + ": " + std::string(message)};
}

void Fields::FailAs(const Status& problem) {
  if (status_->ok()) *status_ = problem;
}

std::optional<int64_t> Fields::OptionalNumber(std::string_view key, int64_t low, int64_t high) {
  const Json* found = Find(key);
  if (found == nullptr) return std::nullopt;
  const int64_t value = object_ == nullptr ? low : NumberAt(*object_, {key}, INT64_MIN);
  if (value >= low && value <= high) return value;
  Fail(key, "is " + Dump(*found).substr(0, 40) + ": give a whole number from " + std::to_string(low) +
                " to " + std::to_string(high));
  return std::nullopt;
}

int64_t Fields::Number(std::string_view key, int64_t low, int64_t high, std::optional<int64_t> otherwise) {
  if (!Has(key) && !otherwise) {
    Fail(key, "is missing: give a whole number from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return OptionalNumber(key, low, high).value_or(otherwise.value_or(low));
}

bool Fields::Boolean(std::string_view key, bool otherwise) {
  const Json* found = Find(key);
  if (found == nullptr) return otherwise;
  if (found->is_boolean()) return found->get<bool>();
  Fail(key, "is neither true nor false");
  return otherwise;
}

std::string Fields::Text(std::string_view key, size_t most) {
  const Json* found = Find(key);
  if (found == nullptr) return {};
  if (!found->is_string()) {
    Fail(key, "is no string");
    return {};
  }
  const auto& text = found->get_ref<const std::string&>();
  if (text.empty()) Fail(key, "is empty: leave it out, or give it a value");
  if (text.size() <= most) return text;
  Fail(key, "has " + std::to_string(text.size()) + " bytes, and " + std::to_string(most) + " are the most");
  return {};
}

std::string Fields::RequiredText(std::string_view key, size_t most) {
  if (!Has(key)) Fail(key, "is missing");
  return Text(key, most);
}

std::string Fields::TextLike(std::string_view key, bool (*valid)(std::string_view), std::string_view shape) {
  std::string text = Text(key, 4096);
  if (text.empty() || valid(text)) return text;
  Fail(key, "\"" + text.substr(0, 80) + "\" is not " + std::string(shape));
  return {};
}

Fields Fields::Object(std::string_view key) { return {Any(key), PathOf(key), status_}; }

const Json* Fields::Array(std::string_view key, size_t most) {
  const Json* found = Find(key);
  if (found == nullptr) return nullptr;
  if (found->is_array() && found->size() <= most) return found;
  Fail(key, "is no list of at most " + std::to_string(most) + " entries");
  return nullptr;
}

void Fields::NoOthers() {
  if (object_ == nullptr) return;
  for (const auto& [key, value] : object_->items()) {
    if (known_.contains(key)) continue;
    std::string names;
    for (const auto& name : known_) names += (names.empty() ? "" : ", ") + name;
    Fail(key.substr(0, 80), "is no field of this version: there are " + names);
  }
}

}  // namespace longhaul::kube
