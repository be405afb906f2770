#include "base/interval_set.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace longhaul {
namespace {

// Whether `a` ends directly before `b` or beyond it; written so that the largest number does not wrap.
bool EndsBefore(const IntervalSet::Range& a, uint64_t b) { return a.last < b && (b - a.last > 1); }

}  // namespace

uint64_t IntervalSet::Add(uint64_t first, uint64_t last) {
  LH_CHECK_OP(first, <=, last);
  // Nearly every packet number is the next one: grow the last range without searching.
  if (ranges_.empty() || EndsBefore(ranges_.back(), first)) {
    ranges_.push_back({first, last});
    return last - first + 1;
  }
  auto begin = std::partition_point(ranges_.begin(), ranges_.end(),
                                    [first](const Range& r) { return EndsBefore(r, first); });
  // [begin, end) touch or overlap first..last.
  uint64_t known = 0;
  auto end = begin;
  Range merged{first, last};
  const bool unbounded = last == std::numeric_limits<uint64_t>::max();
  for (; end != ranges_.end() && (unbounded || end->first <= last + 1); ++end) {
    const uint64_t low = std::max(end->first, first);
    const uint64_t high = std::min(end->last, last);
    if (low <= high) known += high - low + 1;
    merged.first = std::min(merged.first, end->first);
    merged.last = std::max(merged.last, end->last);
  }
  if (begin == end) {
    ranges_.insert(begin, merged);
  } else {
    *begin = merged;
    ranges_.erase(begin + 1, end);
  }
  return last - first + 1 - known;
}

void IntervalSet::RemoveBelow(uint64_t bound) {
  auto keep = std::partition_point(ranges_.begin(), ranges_.end(),
                                   [bound](const Range& r) { return r.last < bound; });
  ranges_.erase(ranges_.begin(), keep);
  if (!ranges_.empty()) ranges_.front().first = std::max(ranges_.front().first, bound);
}

size_t IntervalSet::KeepNewest(size_t count) {
  if (ranges_.size() <= count) return 0;
  const size_t dropped = ranges_.size() - count;
  ranges_.erase(ranges_.begin(), ranges_.begin() + static_cast<std::ptrdiff_t>(dropped));
  return dropped;
}

bool IntervalSet::Contains(uint64_t number) const {
  if (ranges_.empty() || number > ranges_.back().last) return false;
  auto it = std::partition_point(ranges_.begin(), ranges_.end(),
                                 [number](const Range& r) { return r.last < number; });
  return it != ranges_.end() && it->first <= number;
}

uint64_t IntervalSet::Size() const {
  uint64_t size = 0;
  for (const Range& r : ranges_) size += r.last - r.first + 1;
  return size;
}

}  // namespace longhaul
