#include "operator/api/core/watch_decoder.h"

#include <algorithm>
#include <array>
#include <utility>

namespace longhaul::kube::api {
namespace {

using Type = WatchEvent::Type;
constexpr std::array<std::pair<std::string_view, Type>, 5> kTypes = {{{"ADDED", Type::kAdded},
                                                                      {"MODIFIED", Type::kModified},
                                                                      {"DELETED", Type::kDeleted},
                                                                      {"BOOKMARK", Type::kBookmark},
                                                                      {"ERROR", Type::kError}}};

}  // namespace

Status WatchDecoder::Take(std::string_view bytes) {
  if (!status_.ok()) return status_;
  if (begin_ > 0) {
    buffer_.erase(0, begin_);
    scanned_ -= begin_;
    begin_ = 0;
  }
  buffer_ += bytes;
  // The first line may be long; those after it lie in `bytes`, and are looked at when they are the first.
  const size_t end = buffer_.find('\n', scanned_);
  scanned_ = std::min(end, buffer_.size());
  if (scanned_ > max_line_) TooLong();
  return status_;
}

std::optional<WatchEvent> WatchDecoder::Next() {
  while (status_.ok()) {
    const size_t end = buffer_.find('\n', scanned_);
    if (end == std::string::npos) {
      scanned_ = buffer_.size();
      if (scanned_ - begin_ > max_line_) TooLong();
      return std::nullopt;
    }
    const std::string_view line = std::string_view(buffer_).substr(begin_, end - begin_);
    begin_ = scanned_ = end + 1;
    if (line.size() > max_line_) {
      TooLong();
      return std::nullopt;
    }
    ++lines_;
    if (line.find_first_not_of(" \r\t") == std::string_view::npos) continue;
    return Parse(line);
  }
  return std::nullopt;
}

std::optional<WatchEvent> WatchDecoder::Parse(std::string_view line) {
  std::optional<Json> json = ParseJson(line);
  if (!json.has_value()) return Fail("is no JSON", line);
  const std::string_view name = TextAt(*json, {"type"});
  const auto* type = std::ranges::find(kTypes, name, &std::pair<std::string_view, Type>::first);
  if (type == kTypes.end()) return Fail("has no type of event that is known", line);
  const Json* object = ValueAt(*json, {"object"});
  if (object == nullptr || !object->is_object()) return Fail("has no object", line);
  WatchEvent event;
  event.type = type->second;
  if (event.type != Type::kError) {
    event.resource_version = TextAt(*object, {"metadata", "resourceVersion"});
    if (event.resource_version.empty()) return Fail("has an object without a resourceVersion", line);
  }
  event.object = std::move((*json)["object"]);
  return event;
}

void WatchDecoder::TooLong() {
  buffer_.clear();
  begin_ = scanned_ = 0;
  status_ = Status(StatusCode::kResourceExhausted, "line " + std::to_string(lines_ + 1) +
                                                       " of the watch is longer than " +
                                                       std::to_string(max_line_) + " bytes");
}

std::optional<WatchEvent> WatchDecoder::Fail(std::string_view why, std::string_view line) {
  status_ =
      Status(StatusCode::kProtocolViolation, "line " + std::to_string(lines_) + " of the watch (" +
                                                 std::to_string(line.size()) + " bytes) " + std::string(why));
  buffer_.clear();
  begin_ = scanned_ = 0;
  return std::nullopt;
}

}  // namespace longhaul::kube::api
