// A histogram of durations with a resolution of an eighth: small, and cheap enough for every packet.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "base/quantile.h"
#include "longhaul/units.h"

namespace longhaul::wan {

class Lateness {
 public:
  void Record(Duration late) {
    const auto ns = static_cast<uint64_t>(std::max<int64_t>(late.count(), 0));
    ++buckets_[Index(ns)];
    ++count_;
    max_ = std::max(max_, late);
  }
  uint64_t count() const { return count_; }
  Duration max() const { return max_; }
  // The upper bound of the bucket in which the quantile (0..1) lies.
  Duration Quantile(double q) const {
    const size_t wanted = QuantileIndex(count_, q);
    uint64_t seen = 0;
    for (size_t i = 0; i < buckets_.size(); ++i) {
      seen += buckets_[i];
      if (seen > wanted) return std::min(UpperBound(i), max_);
    }
    return max_;
  }

 private:
  // 0..7 ns have a bucket each; from there every octave has eight.
  static size_t Index(uint64_t ns) {
    if (ns < 8) return ns;
    const auto octave = static_cast<size_t>(std::bit_width(ns)) - 4;  // 0 for 8..15
    return 8 + octave * 8 + ((ns >> octave) & 7);
  }
  static Duration UpperBound(size_t index) {
    if (index < 8) return Duration(static_cast<int64_t>(index));
    const size_t octave = (index - 8) / 8;
    return Duration(static_cast<int64_t>((((index - 8) % 8 + 9) << octave) - 1));
  }

  std::array<uint64_t, 8 + 61 * 8> buckets_{};
  uint64_t count_ = 0;
  Duration max_{0};
};

}  // namespace longhaul::wan
