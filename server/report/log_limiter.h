// Bounds what is written about things that strangers can cause as often as they like, also when they go on
// for days: some lines at once, later one from time to time, and how many were left out.
//
//   10:00:00.1  handshake with 10.0.0.9:4711 failed: ...     (`lines` of these at once)
//   10:00:01.1  1204 more were not logged                    (after `gather`, then every `refill` at most)
//   10:00:10.1  handshake with 10.0.0.9:4711 failed: ...     (one for each `refill` that went by)
//
// A flood thus writes two lines per `refill`: with the defaults 17 000 a day. Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

#include "base/instant.h"

namespace longhaul::server {

struct LogLimits {
  uint32_t lines = 10;  // at once, after a quiet time of lines x refill
  Duration refill = std::chrono::seconds(10);
  Duration gather = std::chrono::seconds(1);  // from the first line left out until the number is written
};

class LogLimiter {
 public:
  explicit LogLimiter(const LogLimits& limits = {}) : limits_(limits) {}

  // What is to be written now, in this order.
  struct Verdict {
    uint64_t left_out = 0;  // so many were not written before this one; 0: nothing to tell
    bool line = false;
  };
  // `line` is about to be written. The same again within `refill` is only counted: a retransmission.
  Verdict Add(Instant now, std::string_view line) {
    Verdict verdict{.left_out = TakeLeftOut(now), .line = !IsRepeated(now, line) && TakeToken(now)};
    if (verdict.line) {
      recent_[next_recent_++ % recent_.size()] = {std::hash<std::string_view>{}(line), now + limits_.refill};
    } else if (left_out_++ == 0) {
      due_ = std::max(now + limits_.gather, next_number_);
    }
    return verdict;
  }
  // Lines that were not written since the last answer; 0 before Due().
  uint64_t TakeLeftOut(Instant now) {
    if (now < Due()) return 0;
    next_number_ = now + limits_.refill;
    return std::exchange(left_out_, 0);
  }
  // When to tell how many were left out; infinite when there are none.
  Instant Due() const { return left_out_ == 0 ? Instant::Infinite() : due_; }

 private:
  struct Recent {
    size_t hash = 0;
    Instant until;
  };

  bool IsRepeated(Instant now, std::string_view line) const {
    const size_t hash = std::hash<std::string_view>{}(line);
    return std::ranges::any_of(recent_, [&](const Recent& r) { return r.hash == hash && now < r.until; });
  }
  // A bucket of `lines` tokens, kept as the instant at which it is full again.
  bool TakeToken(Instant now) {
    const Instant full = std::max(full_, now);
    if (full - now > (int64_t{limits_.lines} - 1) * limits_.refill) return false;
    full_ = full + limits_.refill;
    return true;
  }

  LogLimits limits_;
  Instant full_;
  Instant next_number_;  // the earliest time for the next number
  uint64_t left_out_ = 0;
  Instant due_;
  std::array<Recent, 16> recent_;  // written lines, the oldest is replaced
  size_t next_recent_ = 0;
};

}  // namespace longhaul::server
