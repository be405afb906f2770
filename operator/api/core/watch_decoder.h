// A watch's bytes into its events: one JSON object a line, {"type": "ADDED", "object": {...}}.
//
// The bytes come in any pieces. A line has a bound, and so has what is kept: one line and the last piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "longhaul/status.h"
#include "operator/api/core/api_result.h"

namespace longhaul::kube::api {

struct WatchEvent {
  enum class Type : uint8_t {
    kAdded,
    kModified,
    kDeleted,
    kBookmark,  // only resource_version: all before it has been sent
    kError,     // `object` is a Status, see ClassifyStatus; the server ends the watch
  };
  Type type = Type::kError;
  Json object;
  std::string resource_version;  // of the object; empty with kError
};

class WatchDecoder {
 public:
  // etcd refuses requests above 1.5 MiB, the API server bodies above 3 MiB (MaxRequestBodyBytes): no object
  // is larger, and its line has some bytes around it.
  static constexpr size_t kMaxLineBytes = size_t{4} << 20;

  explicit WatchDecoder(size_t max_line = kMaxLineBytes) : max_line_(max_line) {}

  // Then Next until it is empty. After a failure nothing is taken any more. kResourceExhausted: a line is too
  // long.
  Status Take(std::string_view bytes);
  // The next whole event. status() then: kProtocolViolation, a line is no event; kResourceExhausted.
  std::optional<WatchEvent> Next();
  // Why it takes no more.
  const Status& status() const { return status_; }
  // Whether the bytes end inside a line.
  bool InsideLine() const { return begin_ < buffer_.size(); }
  size_t buffered() const { return buffer_.size(); }

 private:
  std::optional<WatchEvent> Parse(std::string_view line);
  void TooLong();
  std::optional<WatchEvent> Fail(std::string_view why, std::string_view line);

  const size_t max_line_;
  std::string buffer_;
  size_t begin_ = 0;    // of the first line that Next has not taken
  size_t scanned_ = 0;  // no end of a line before it
  uint64_t lines_ = 0;
  Status status_;
};

}  // namespace longhaul::kube::api
