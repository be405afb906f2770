// A set of 64-bit numbers kept as disjoint, non-adjacent, inclusive ranges in ascending order.
// Cheap when the numbers come mostly in order (adding at the end is O(1) amortised, else O(log n + shift)).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace longhaul {

class IntervalSet {
 public:
  struct Range {
    uint64_t first = 0;  // inclusive
    uint64_t last = 0;   // inclusive
    bool operator==(const Range&) const = default;
  };

  // Adds first..last (first <= last), merging what touches. Returns how many numbers were new.
  uint64_t Add(uint64_t first, uint64_t last);
  uint64_t Add(uint64_t number) { return Add(number, number); }
  // Removes every number < bound.
  void RemoveBelow(uint64_t bound);
  // Drops whole ranges, lowest first, until at most `count` are left. Returns how many ranges went.
  size_t KeepNewest(size_t count);

  bool Contains(uint64_t number) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }
  uint64_t Size() const;  // numbers in the set

 private:
  std::vector<Range> ranges_;
};

}  // namespace longhaul
