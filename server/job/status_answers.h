// Answers to those who ask how the job is. A status is made for all that ask at the same time: asking is
// cheap. Not thread-safe.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/instant.h"
#include "proto/control_codec.h"
#include "server/report/server_stats.h"

namespace longhaul::server {

class StatusAnswers {
 public:
  static constexpr Duration kAge = std::chrono::milliseconds(100);  // a status is made at most so often

  // make: the JSON; empty: "{}".
  explicit StatusAnswers(std::function<std::string(const ServerStats&)> make) : make_(std::move(make)) {}

  control::ControlMessage Answer(uint32_t request, Instant now, const std::function<ServerStats()>& stats) {
    if (!status_ || now >= made_ + kAge) {
      made_ = now;
      status_ = make_ ? make_(stats()) : "{}";
      if (status_->size() > wire::kMaxControlMessageBytes / 2)
        status_ = "{\"error\":\"the status is too long\"}";
    }
    control::ControlMessage message;
    message.mutable_status_reply()->set_request(request);
    message.mutable_status_reply()->set_json(*status_);
    return message;
  }

 private:
  std::function<std::string(const ServerStats&)> make_;
  std::optional<std::string> status_;  // as of made_
  Instant made_;
};

}  // namespace longhaul::server
