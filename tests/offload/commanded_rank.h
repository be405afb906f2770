// A rank that is a process of its own: it does what it is asked, and may be killed at any time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "longhaul/offload.h"

namespace longhaul::offload {

class CommandedRank {
 public:
  static constexpr size_t kMostElements = 1 << 17;

  enum class Kind : uint8_t { kOpen, kPost, kStats };
  struct Command {
    Kind kind = Kind::kOpen;
    WorkRequest request = {};  // kPost: of all of the send array's first bytes
    JobConfig jobs[2] = {};    // kOpen: jobs 0 and 1
    int64_t cancel_after_us = -1;
  };
  enum class Outcome : uint8_t {
    kDone,
    kDaemonGone,  // before there was a completion
    kHangs,       // no completion for long after its deadline
    kKilled,      // the process
  };
  struct Report {
    Outcome outcome = Outcome::kKilled;
    Completion completion = {};
    uint32_t segs_in_use = 0;
  };

  // where: of the device.
  CommandedRank(std::string where, uint8_t node, uint8_t rank);
  ~CommandedRank();
  CommandedRank(const CommandedRank&) = delete;
  CommandedRank& operator=(const CommandedRank&) = delete;

  // Another process, in place of one that was killed.
  void Start();
  void Kill();
  bool IsKilled() const { return pid_ <= 0; }
  void Ask(const Command& command);
  // The answer to Ask, waited for that long; nothing: it did not come.
  std::optional<Report> Answer(int milliseconds);

  // In memory of both: what it sends and gets, as 32-bit words.
  std::span<uint32_t> send() { return {memory_, kMostElements}; }
  std::span<uint32_t> receive() { return {memory_ + kMostElements, kMostElements}; }

 private:
  [[noreturn]] void Main(int commands, int reports);

  std::string where_;
  uint8_t node_;
  uint8_t rank_;
  uint32_t* memory_;
  int pid_ = -1;
  int commands_ = -1;
  int reports_ = -1;
};

}  // namespace longhaul::offload
