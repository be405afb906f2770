// What a daemon says: standard output and standard error, each through a queue that never waits, and spdlog's
// lines through the second one.
#pragma once

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "base/process/confinement.h"
#include "base/process/output_queue.h"

namespace longhaul::process {

// Formats a line and hands it on; coloured where spdlog's own sink for a terminal colours it.
class QueueSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // `queue` must outlive the sink's loggers.
  QueueSink(OutputQueue* queue, bool coloured) : queue_(queue), coloured_(coloured) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t buffer;
    formatter_->format(message, buffer);
    std::string line(buffer.data(), buffer.size());
    if (coloured_ && message.color_range_end > message.color_range_start) {
      line.insert(message.color_range_end, "\033[m");
      line.insert(message.color_range_start, Colour(message.level));
    }
    while (line.ends_with('\n')) line.pop_back();
    queue_->Write(std::move(line));
  }
  void flush_() override {}

 private:
  static const char* Colour(spdlog::level::level_enum level) {
    if (level >= spdlog::level::err) return "\033[31m\033[1m";
    if (level == spdlog::level::warn) return "\033[33m\033[1m";
    return level == spdlog::level::info ? "\033[32m" : "\033[36m";
  }

  OutputQueue* queue_;
  bool coloured_;
};

class Output {
 public:
  // How long a reader that is slow is waited for at the end.
  static constexpr Duration kLastWords = std::chrono::seconds(1);

  // json: standard output is a JSON object a line. Starts two threads, see OutputQueue; `program`'s lines
  // of spdlog go to standard error from now on, until this dies.
  Output(std::string program, bool json, spdlog::level::level_enum level)
      : program_(std::move(program)),
        errors_(STDERR_FILENO,
                [name = program_](uint64_t lines) {
                  return name + ": " + std::to_string(lines) +
                         " lines of this log were dropped: it was not read in time";
                }),
        lines_(STDOUT_FILENO, [json](uint64_t lines) {
          const std::string count = std::to_string(lines);
          return json ? "{\"event\":\"dropped\",\"lines\":" + count + "}"
                      : "... " + count + " lines were dropped here: they were not read in time";
        }) {
    const bool terminal = ::isatty(STDERR_FILENO) == 1;
    auto logger = std::make_shared<spdlog::logger>(program_, std::make_shared<QueueSink>(&errors_, terminal));
    logger->set_level(level);
    spdlog::set_default_logger(std::move(logger));
  }
  // Writes what is left, for at most kLastWords each, and says how much of standard output is missing.
  ~Output() {
    if (!lines_.Flush(kLastWords)) {
      Complain("standard output is not read: its last lines are lost");
    } else if (!lines_.error().empty()) {
      Complain(std::to_string(lines_.dropped()) + " lines of standard output were lost: " + lines_.error());
    }
    (void)errors_.Flush(kLastWords);
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(program_));  // one without sinks
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // A line on standard output. Any thread; never waits.
  void Print(std::string line) { lines_.Write(std::move(line)); }
  // "longhaul-server: what" on standard error, whatever the log level. Any thread; never waits.
  void Complain(std::string_view what) { errors_.Write(program_ + ": " + std::string(what)); }

 private:
  std::string program_;
  OutputQueue errors_;
  OutputQueue lines_;
};

// As Confine; where that is not possible, the log has a warning.
inline void ConfineOrWarn(Confinement role, bool takes_connections = false) {
  if (const Status confined = Confine(role, takes_connections); !confined.ok()) {
    spdlog::warn("system calls are not confined: {}", confined.message());
  }
}

}  // namespace longhaul::process
