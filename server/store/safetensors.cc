#include "server/store/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

namespace longhaul::server::store {
namespace {

using nlohmann::json;

constexpr const char* kMetadata = "__metadata__";

Status BadHeader(const std::string& why) { return {StatusCode::kDataLoss, "safetensors header: " + why}; }

// Exactly two offsets, in order.
bool IsRange(const json& value) {
  return value.is_array() && value.size() == 2 && value[0].is_number_unsigned() &&
         value[1].is_number_unsigned() && value[0].get<uint64_t>() <= value[1].get<uint64_t>();
}

// Null: fine.
const char* WrongIn(const json& entry, uint64_t data_bytes) {
  if (!entry.is_object() || entry.size() != 3) return "is not a dtype, a shape and data_offsets";
  const auto dtype = entry.find("dtype"), shape = entry.find("shape"), offsets = entry.find("data_offsets");
  if (dtype == entry.end() || shape == entry.end() || offsets == entry.end()) return "lacks a member";
  if (*dtype != "F32") return "is not of dtype F32";
  if (!shape->is_array() || shape->size() != 1 || !(*shape)[0].is_number_unsigned()) return "is no vector";
  if (!IsRange(*offsets)) return "has no data_offsets in order";
  const uint64_t begin = (*offsets)[0], end = (*offsets)[1], count = (*shape)[0];
  if (end > data_bytes) return "ends behind the file's end";
  if (count > data_bytes / sizeof(float) || end - begin != count * sizeof(float))
    return "has a shape that its offsets do not fit";
  return nullptr;
}

}  // namespace

uint64_t SafetensorsHeader::data_bytes() const {
  uint64_t bytes = 0;
  for (const Entry& entry : tensors) bytes += entry.count * sizeof(float);
  return bytes;
}

Result<std::string> EncodeHeader(const SafetensorsHeader& header) {
  json out = json::object();
  if (!header.metadata.empty()) out[kMetadata] = header.metadata;
  uint64_t at = 0;
  for (const SafetensorsHeader::Entry& entry : header.tensors) {
    if (entry.name == kMetadata || out.contains(entry.name)) {
      return Status(StatusCode::kInvalidArgument,
                    "a tensor named \"" + entry.name + "\" cannot be saved: the name is taken");
    }
    const uint64_t end = at + entry.count * sizeof(float);
    out[entry.name] = {{"dtype", "F32"}, {"shape", {entry.count}}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text;
  try {
    text = out.dump();
  } catch (const json::type_error&) {
    return Status(StatusCode::kInvalidArgument, "a tensor whose name is no UTF-8 cannot be saved");
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string length;
  for (unsigned shift = 0; shift < 64; shift += 8) length += static_cast<char>(text.size() >> shift & 0xff);
  return length + text;
}

Result<uint64_t> DecodeHeaderLength(std::string_view bytes, uint64_t file_bytes) {
  uint64_t length = 0;
  for (size_t i = SafetensorsHeader::kLengthBytes; i-- > 0;) {
    length = length << 8 | static_cast<uint8_t>(bytes[i]);
  }
  if (file_bytes < SafetensorsHeader::kLengthBytes ||
      length > std::min(SafetensorsHeader::kMaxHeaderBytes, file_bytes - SafetensorsHeader::kLengthBytes)) {
    return BadHeader("its length is said to be " + std::to_string(length) + " bytes in a file of " +
                     std::to_string(file_bytes));
  }
  return length;
}

Result<SafetensorsHeader> DecodeHeader(std::string_view text, uint64_t data_bytes) {
  std::set<std::string> names;
  bool twice = false;
  const auto parsed = json::parse(
      text.begin(), text.end(),
      [&](int depth, json::parse_event_t event, json& value) {
        if (depth == 1 && event == json::parse_event_t::key)
          twice |= !names.insert(value.get<std::string>()).second;
        return true;
      },
      /*allow_exceptions=*/false);
  if (!parsed.is_object()) return BadHeader("it is no JSON object");
  if (twice) return BadHeader("a tensor is in it twice");
  SafetensorsHeader header;
  std::vector<std::pair<uint64_t, SafetensorsHeader::Entry>> found;  // by where the values begin
  for (const auto& [name, entry] : parsed.items()) {
    if (name == kMetadata) {
      if (!entry.is_object()) return BadHeader("its metadata is no object");
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) return BadHeader("its metadata has a value that is no text");
        header.metadata[key] = value.get<std::string>();
      }
      continue;
    }
    if (const char* wrong = WrongIn(entry, data_bytes)) return BadHeader("tensor \"" + name + "\" " + wrong);
    found.emplace_back(entry["data_offsets"][0].get<uint64_t>(),
                       SafetensorsHeader::Entry{name, entry["shape"][0].get<uint64_t>()});
  }
  // One without values begins where another does.
  std::ranges::sort(found, {}, [](const auto& f) { return std::pair(f.first, f.second.count); });
  uint64_t at = 0;
  for (auto& [begin, entry] : found) {
    if (begin != at)
      return BadHeader("the values of tensor \"" + entry.name + "\" overlap others, or leave a gap");
    at += entry.count * sizeof(float);
    header.tensors.push_back(std::move(entry));
  }
  if (at != data_bytes) {
    return BadHeader("its tensors have " + std::to_string(at) + " bytes, the file " +
                     std::to_string(data_bytes));
  }
  return header;
}

}  // namespace longhaul::server::store
