// Units as types: what does not make sense does not compile.
//
//   ByteCount bdp = bandwidth * min_rtt;      // fine
//   bandwidth + bdp;                          // does not compile
//
// Ratios (loss, shares) are plain doubles in 0..1; a percentage never appears in code.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <limits>
#include <string>

namespace longhaul {

// A span of time; nanoseconds since that is what the operating system's clocks and timers speak.
using Duration = std::chrono::nanoseconds;

// The integer next to `v` towards zero; the largest or smallest one where none is (a bound that grew).
constexpr int64_t Saturated(double v) {
  constexpr double kEnd = 9223372036854775808.0;  // 2^63
  if (v >= kEnd) return std::numeric_limits<int64_t>::max();
  return v > -kEnd ? static_cast<int64_t>(v) : std::numeric_limits<int64_t>::min();
}

// A number of bytes. 64 bits, signed so that a difference cannot wrap.
class ByteCount {
 public:
  constexpr ByteCount() = default;
  constexpr explicit ByteCount(int64_t bytes) : bytes_(bytes) {}
  static constexpr ByteCount Max() { return ByteCount(std::numeric_limits<int64_t>::max()); }

  constexpr int64_t value() const { return bytes_; }
  constexpr auto operator<=>(const ByteCount&) const = default;

  constexpr ByteCount& operator+=(ByteCount o) {
    bytes_ += o.bytes_;
    return *this;
  }
  constexpr ByteCount& operator-=(ByteCount o) {
    bytes_ -= o.bytes_;
    return *this;
  }
  friend constexpr ByteCount operator+(ByteCount a, ByteCount b) { return ByteCount(a.bytes_ + b.bytes_); }
  friend constexpr ByteCount operator-(ByteCount a, ByteCount b) { return ByteCount(a.bytes_ - b.bytes_); }
  friend constexpr ByteCount operator*(ByteCount a, int64_t n) { return ByteCount(a.bytes_ * n); }
  friend constexpr ByteCount operator*(ByteCount a, double f) {
    return ByteCount(Saturated(static_cast<double>(a.bytes_) * f));
  }
  friend constexpr double operator/(ByteCount a, ByteCount b) {
    return static_cast<double>(a.bytes_) / static_cast<double>(b.bytes_);
  }

 private:
  int64_t bytes_ = 0;
};

// Bits per second.
class Bandwidth {
 public:
  constexpr Bandwidth() = default;
  static constexpr Bandwidth BitsPerSecond(int64_t bps) { return Bandwidth(bps); }
  static constexpr Bandwidth BytesPerSecond(int64_t v) { return Bandwidth(v * 8); }
  static constexpr Bandwidth Mbps(double mbps) { return Bandwidth(Saturated(mbps * 1e6)); }
  static constexpr Bandwidth Zero() { return {}; }
  static constexpr Bandwidth Max() { return Bandwidth(std::numeric_limits<int64_t>::max()); }
  // What moves `bytes` in `time`; Max() when time is not positive, and at most that.
  static constexpr Bandwidth FromBytesAndTime(ByteCount bytes, Duration time) {
    if (time.count() <= 0) return Max();
    return Bandwidth(Saturated(static_cast<double>(bytes.value()) * 8e9 / static_cast<double>(time.count())));
  }

  constexpr int64_t bits_per_second() const { return bps_; }
  constexpr double bytes_per_second() const { return static_cast<double>(bps_) / 8.0; }
  constexpr double mbps() const { return static_cast<double>(bps_) / 1e6; }
  constexpr bool IsZero() const { return bps_ == 0; }
  constexpr auto operator<=>(const Bandwidth&) const = default;

  // How long `bytes` take at this rate; Duration::max() at rate zero.
  constexpr Duration TransferTime(ByteCount bytes) const {
    if (bps_ <= 0) return Duration::max();
    return Duration(Saturated(static_cast<double>(bytes.value()) * 8e9 / static_cast<double>(bps_)));
  }
  friend constexpr ByteCount operator*(Bandwidth b, Duration t) {
    return ByteCount(Saturated(static_cast<double>(b.bps_) / 8e9 * static_cast<double>(t.count())));
  }
  friend constexpr ByteCount operator*(Duration t, Bandwidth b) { return b * t; }
  friend constexpr Bandwidth operator*(Bandwidth b, double gain) {
    return Bandwidth(Saturated(static_cast<double>(b.bps_) * gain));
  }
  friend constexpr Bandwidth operator*(double gain, Bandwidth b) { return b * gain; }
  friend constexpr Bandwidth operator+(Bandwidth a, Bandwidth b) { return Bandwidth(a.bps_ + b.bps_); }
  friend constexpr Bandwidth operator-(Bandwidth a, Bandwidth b) { return Bandwidth(a.bps_ - b.bps_); }
  friend constexpr double operator/(Bandwidth a, Bandwidth b) {
    return static_cast<double>(a.bps_) / static_cast<double>(b.bps_);
  }

 private:
  constexpr explicit Bandwidth(int64_t bps) : bps_(bps) {}
  int64_t bps_ = 0;
};

}  // namespace longhaul
