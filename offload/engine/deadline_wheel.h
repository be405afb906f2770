// Many timers, each set and cancelled in constant time and without allocation: a hashed wheel (Varghese and
// Lauck, scheme 6).
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/instant.h"

namespace longhaul::offload {

class DeadlineWheel {
 public:
  using Timer = uint32_t;
  static constexpr Timer kNone = UINT32_MAX;

  // At most `capacity` timers at a time.
  explicit DeadlineWheel(uint32_t capacity);

  // kNone: all are in use. `what` comes back when it is due.
  Timer Add(Instant due, uint64_t what);
  // Nothing happens for kNone, which the name becomes: it may be another timer's from now on.
  void Cancel(Timer& timer);
  // Of one timer that is due, which is gone then; none: ask again at Next().
  std::optional<uint64_t> Expire(Instant now);
  Instant Next() const;
  uint32_t size() const { return size_; }

 private:
  static constexpr size_t kSlots = 256;
  static constexpr int kTickShift = 16;  // 65.5 us: a turn is 16.8 ms, above the usual retransmission time

  struct Entry {
    Instant due;
    uint64_t what = 0;
    Timer next = kNone;
    Timer previous = kNone;
    uint16_t slot = 0;
    bool armed = false;
  };

  static int64_t TickOf(Instant t) { return t.nanoseconds() >> kTickShift; }

  std::vector<Entry> entries_;
  std::array<Timer, kSlots> heads_;
  std::array<uint64_t, kSlots / 64> occupied_{};
  Timer free_ = kNone;
  int64_t tick_ = 0;  // everything before it is expired
  uint32_t size_ = 0;
};

}  // namespace longhaul::offload
