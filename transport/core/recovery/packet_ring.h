// A queue in segments: once it has its size no element costs an allocation, which a std::deque of records
// larger than a few hundred bytes cannot promise, and to grow moves none of them. Elements are reached by
// position.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"

namespace longhaul::transport {

template <typename T>
class PacketRing {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  // REQUIRES: i < size(). Position 0 is the oldest element.
  T& operator[](size_t i) { return At(head_ + i); }
  const T& operator[](size_t i) const { return At(head_ + i); }

  void PushBack(T value) {
    const size_t tail = head_ + size_;
    if (size_ == 0 || tail % kSegment == 0) AddSegment(tail);
    ++size_;
    At(tail) = std::move(value);
  }
  // REQUIRES: !empty(). What the element owns is released now, not when its slot is reused.
  void PopFront() {
    LH_CHECK_OP(size_, >, 0u);
    At(head_) = T();
    --size_;
    if (++head_ % kSegment == 0 || size_ == 0) free_.push_back(std::move(Of(head_ - 1)));
  }
  // First position whose element does not satisfy `before`, which must hold for a prefix only.
  template <typename Predicate>
  size_t PartitionPoint(Predicate before) const {
    size_t low = 0;
    size_t high = size_;
    while (low < high) {
      const size_t middle = low + (high - low) / 2;
      if (before((*this)[middle])) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

 private:
  static constexpr size_t kSegment = 64;
  using Segment = std::unique_ptr<std::array<T, kSegment>>;

  // By absolute position, counted from the first element ever.
  Segment& Of(size_t at) { return segments_[at / kSegment & (segments_.size() - 1)]; }
  T& At(size_t at) { return (*Of(at))[at % kSegment]; }
  const T& At(size_t at) const { return (*segments_[at / kSegment & (segments_.size() - 1)])[at % kSegment]; }

  void AddSegment(size_t at) {
    if (at / kSegment - head_ / kSegment == segments_.size()) GrowTable();
    if (free_.empty()) free_.push_back(std::make_unique<std::array<T, kSegment>>());
    Of(at) = std::move(free_.back());
    free_.pop_back();
  }
  // Moves the segments' addresses. One of free_'s places is for each.
  void GrowTable() {
    std::vector<Segment> larger(segments_.empty() ? 1 : segments_.size() * 2);
    LH_CHECK((larger.size() & (larger.size() - 1)) == 0);
    for (size_t i = 0; i < segments_.size(); ++i) {
      const size_t of = head_ / kSegment + i;
      larger[of & (larger.size() - 1)] = std::move(segments_[of & (segments_.size() - 1)]);
    }
    segments_ = std::move(larger);
    free_.reserve(segments_.size());
  }

  std::vector<Segment> segments_;  // a power of two of places
  std::vector<Segment> free_;
  size_t head_ = 0;
  size_t size_ = 0;
};

}  // namespace longhaul::transport
