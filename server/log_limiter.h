// So many lines per period about what strangers can cause as often as they like, then how many there would
// have been.
//
//   10:00:00.1  handshake with 10.0.0.9:4711 failed: ...     (kLines of these at most)
//   10:00:01.1  1204 more were not logged
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <utility>

#include "base/instant.h"

namespace longhaul::server {

class LogLimiter {
 public:
  LogLimiter(uint32_t lines, Duration period) : lines_(lines), period_(period) {}

  // Whether a line may be written now; it is counted either way. The first one begins a period.
  bool Allow(Instant now) {
    if (now >= ends_) {
      ends_ = now + period_;
      written_ = 0;
    }
    if (written_ < lines_) {
      ++written_;
      return true;
    }
    ++suppressed_;
    return false;
  }
  // Lines that were not written since the last answer; 0 before Due().
  uint64_t TakeSuppressed(Instant now) { return now < Due() ? 0 : std::exchange(suppressed_, 0); }
  // The end of the period in which lines were not written; infinite when there are none.
  Instant Due() const { return suppressed_ == 0 ? Instant::Infinite() : ends_; }

 private:
  uint32_t lines_;
  Duration period_;
  Instant ends_;  // of the period
  uint32_t written_ = 0;
  uint64_t suppressed_ = 0;
};

}  // namespace longhaul::server
