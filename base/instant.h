// A point in time. The core has no clock: time is always an argument.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>

#include "longhaul/units.h"

namespace longhaul {

// Nanoseconds since an epoch that the shell (or the simulator) chooses. Deliberately without now().
class Instant {
 public:
  constexpr Instant() = default;
  static constexpr Instant FromNanoseconds(int64_t ns) { return Instant(ns); }
  // Later than every real instant; "no timer is armed".
  static constexpr Instant Infinite() { return Instant(std::numeric_limits<int64_t>::max()); }

  constexpr int64_t nanoseconds() const { return ns_; }
  constexpr bool IsInfinite() const { return *this == Infinite(); }
  constexpr auto operator<=>(const Instant&) const = default;

  friend constexpr Instant operator+(Instant t, Duration d) {
    if (t.IsInfinite() || d == Duration::max()) return Infinite();
    return Instant(t.ns_ + d.count());
  }
  friend constexpr Instant operator-(Instant t, Duration d) {
    return t.IsInfinite() ? t : Instant(t.ns_ - d.count());
  }
  friend constexpr Duration operator-(Instant a, Instant b) { return Duration(a.ns_ - b.ns_); }
  constexpr Instant& operator+=(Duration d) { return *this = *this + d; }

 private:
  constexpr explicit Instant(int64_t ns) : ns_(ns) {}
  int64_t ns_ = 0;
};

}  // namespace longhaul
