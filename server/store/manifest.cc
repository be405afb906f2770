#include "server/store/manifest.h"

#include <nlohmann/json.hpp>

#include "server/store/hashed_file.h"

namespace longhaul::server::store {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 8;  // ours has 4

Status BadManifest(const std::string& why) { return {StatusCode::kDataLoss, "manifest: " + why}; }

json ToJson(const Manifest::File& file) { return {{"bytes", file.bytes}, {"sha256", file.sha256}}; }

json ToJson(const Manifest& m) {
  json tensors = json::array();
  for (const Manifest::Tensor& t : m.tensors) {
    tensors.push_back({{"name", t.name},
                       {"dtype", "F32"},
                       {"count", t.count},
                       {"optimizer", t.optimizer},
                       {"state", t.state},
                       {"rounds", t.rounds},
                       {"shift_epoch", t.shift_epoch}});
  }
  return {
      {"format", Manifest::kFormat},
      {"generation", m.generation},
      {"job", m.job},
      {"settings", json::parse(m.settings)},
      {"rounds", m.rounds},
      {"written", m.written},
      {"files", {{Manifest::kParameters, ToJson(m.parameters)}, {Manifest::kOptimizer, ToJson(m.optimizer)}}},
      {"tensors", tensors}};
}

// Of what it is without a hash.
std::string HashOf(json value) {
  value.erase("sha256");
  return Sha256Of(value.dump());
}

std::string Print(json value) {
  value["sha256"] = HashOf(value);
  return value.dump(1) + "\n";
}

// Null: it is none that could be ours.
json ParseObject(std::string_view text) {
  if (text.size() > Manifest::kMaxBytes) return nullptr;
  bool deep = false;  // printing goes down as far as the text does
  const auto bounded = [&deep](int depth, json::parse_event_t, const json&) {
    deep |= depth > kMaxDepth;
    return depth <= kMaxDepth;
  };
  json value = json::parse(text.begin(), text.end(), bounded, /*allow_exceptions=*/false);
  return value.is_object() && !deep ? value : json();
}

Manifest::File FileFrom(const json& value) {
  return {value.at("bytes").get<uint64_t>(), value.at("sha256").get<std::string>()};
}

// Throws json::exception where something is missing or of another type.
Manifest FromJson(const json& value) {
  Manifest m;
  m.generation = value.at("generation").get<uint64_t>();
  m.job = value.at("job").get<std::string>();
  m.settings = value.at("settings").dump();
  m.rounds = value.at("rounds").get<uint64_t>();
  m.written = value.at("written").get<std::string>();
  m.parameters = FileFrom(value.at("files").at(Manifest::kParameters));
  m.optimizer = FileFrom(value.at("files").at(Manifest::kOptimizer));
  for (const json& t : value.at("tensors")) {
    m.tensors.push_back({.name = t.at("name").get<std::string>(),
                         .count = t.at("count").get<uint64_t>(),
                         .optimizer = t.at("optimizer").get<std::string>(),
                         .state = t.at("state").get<std::vector<std::string>>(),
                         .rounds = t.at("rounds").get<uint64_t>(),
                         .shift_epoch = t.at("shift_epoch").get<uint32_t>()});
  }
  return m;
}

}  // namespace

std::string Sha256Of(std::string_view text) {
  Sha256 hash;
  hash.Update({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  return hash.Finish();
}

std::string ManifestHash(std::string_view text) {
  const json value = ParseObject(text);
  try {
    return value.is_object() ? HashOf(value) : "";
  } catch (const json::exception&) {
    return "";
  }
}

Result<std::string> EncodeManifest(const Manifest& manifest) {
  try {
    return Print(ToJson(manifest));
  } catch (const json::exception& error) {
    return Status(StatusCode::kInvalidArgument,
                  std::string("the manifest cannot be written: ") + error.what());
  }
}

Result<Manifest> DecodeManifest(std::string_view text) {
  const json value = ParseObject(text);
  if (!value.is_object()) return BadManifest("it is no JSON object, or a deep or long one");
  const auto format = value.find("format");
  if (format != value.end() && format->is_number_unsigned() && *format != Manifest::kFormat) {
    return Status(
        StatusCode::kVersionMismatch,
        "its format is " + format->dump() + ", and this program knows " + std::to_string(Manifest::kFormat));
  }
  try {
    if (Print(value) != text) return BadManifest("it is not as it was written");
    Manifest manifest = FromJson(value);
    if (Print(ToJson(manifest)) != text) return BadManifest("it has members that are unknown here");
    return manifest;
  } catch (const json::exception& error) {
    return BadManifest(error.what());
  }
}

}  // namespace longhaul::server::store
