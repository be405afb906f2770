// How far jobs are: rounds, read from the metrics port of their servers' pods. Nothing depends on it: what
// does not answer in two seconds is asked again later.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/instant.h"

namespace longhaul::kube {

// Of a page in Prometheus' text format; nullopt: it has no rounds.
std::optional<int64_t> ParseRound(std::string_view page);

struct ProgressCounters {
  uint64_t reads = 0;
  uint64_t failures = 0;
  uint64_t refused = 0;  // beyond kMostOpen: at the next time
};

class ProgressReader {
 public:
  static constexpr size_t kMostOpen = 16;                // at once
  static constexpr size_t kMostBytes = size_t{1} << 20;  // of a page; 1,024 members have 600 KB
  static constexpr Duration kLimit = std::chrono::seconds(2);
  static constexpr Duration kEvery = std::chrono::seconds(30);  // each job

  ProgressReader();
  ~ProgressReader();
  ProgressReader(const ProgressReader&) = delete;
  ProgressReader& operator=(const ProgressReader&) = delete;

  // Asks where the last time is long ago. Of an earlier job of the same name nothing is known any more.
  void Ask(const std::string& job, const std::string& uid, const std::string& ip, int port, Instant now);
  // Works without waiting. The next job whose round has become another one.
  void Poll();
  std::optional<std::string> NextChanged();
  std::optional<int64_t> RoundOf(const std::string& job, const std::string& uid) const;
  void Forget(const std::string& job);
  bool busy() const;
  const ProgressCounters& counters() const { return counters_; }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  ProgressCounters counters_;
};

}  // namespace longhaul::kube
