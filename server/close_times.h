// What a worker's recent windows took until their high class was done, and the soft deadline learned from it.
//
//   soft = median + 3 max(MAD, median / 16, 1 ms)
//
// of the last 32 times, from the eighth on (MAD: median absolute deviation). The median and not the mean,
// since the deadline must not move with the outliers that it is there to cut off. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "longhaul/units.h"

namespace longhaul::server {

class CloseTimes {
 public:
  static constexpr size_t kMemory = 32;
  static constexpr size_t kEnough = 8;

  // REQUIRES: not negative.
  void Add(Duration taken);
  // Nullopt as long as there are fewer than kEnough.
  std::optional<Duration> Soft() const;
  size_t count() const { return count_; }

 private:
  std::array<Duration, kMemory> times_{};  // ring
  size_t count_ = 0;                       // at most kMemory
  size_t next_ = 0;
};

}  // namespace longhaul::server
