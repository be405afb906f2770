// What a server's events become: lines on standard output, and the file of --json.
#pragma once

#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/files.h"
#include "base/flags/flag_names.h"
#include "base/process/output.h"
#include "health/health_port.h"
#include "longhaul/server.h"

namespace longhaul::server {

class Progress {
 public:
  struct Options {
    std::string form = "text";  // --progress
    std::string json_file = {};
    std::string job = {};  // of several, whose lines say whose they are; else empty
  };
  // health: may be null.
  Progress(Options options, process::Output* output, health::HealthPort* health)
      : options_(std::move(options)), output_(output), health_(health) {}

  // Two forms of one line. json: an object.
  void Print(const std::string& text, const std::string& json) {
    if (options_.form == "json") output_->Print(cli::WithFlagNames(WithJob(json)));
    if (options_.form == "text") output_->Print(Named(cli::WithFlagNames(text)));
  }
  // In the server's thread, which a file must not hold up.
  void On(const ServerEvent& event) {
    if (health_ != nullptr && event.kind == ServerEvent::Kind::kRound) health_->NoteProgress();
    Print(event.text, event.json);
    const bool finished = event.kind == ServerEvent::Kind::kFinished;
    if (!finished && event.kind != ServerEvent::Kind::kAbort) return;
    const std::lock_guard lock(mutex_);
    summary_ = event.json;
    finished_ = finished;
  }
  // What has come since the last call.
  void WriteSummary() {
    std::optional<std::string> summary;
    {
      const std::lock_guard lock(mutex_);
      summary.swap(summary_);
    }
    if (!summary || options_.json_file.empty()) return;
    const Status written = WriteFileAtomically(options_.json_file, *summary + "\n");
    if (written.ok()) return;
    json_failed_ = true;
    output_->Complain(Named("--json: " + written.message()));
  }
  void PrintListening(const Server& server, const std::string& security) {
    const nlohmann::json line = {{"event", "listening"},
                                 {"address", server.address()},
                                 {"port", server.port()},
                                 {"fec", server.fec_backend()},
                                 {"security", security}};
    Print("listening on " + server.address(), line.dump());
  }
  // "job resnet: text" where there are several.
  std::string Named(const std::string& text) const {
    return options_.job.empty() ? text : "job " + options_.job + ": " + text;
  }
  // Of any job so far. In the thread that writes summaries.
  bool json_failed() const { return json_failed_; }
  // Whether the latest job that is over has finished.
  bool finished() {
    const std::lock_guard lock(mutex_);
    return finished_;
  }

 private:
  std::string WithJob(const std::string& json) const {
    if (options_.job.empty()) return json;
    auto object = nlohmann::ordered_json::parse(json, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object() || object.contains("job")) return json;
    object["job"] = options_.job;
    return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  }

  const Options options_;
  process::Output* output_;
  health::HealthPort* health_;
  bool json_failed_ = false;
  std::mutex mutex_;  // guards the next two
  std::optional<std::string> summary_;
  bool finished_ = false;
};

}  // namespace longhaul::server
