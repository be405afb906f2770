// A queue in one growing power-of-two array: no allocation per element once it has its size, which a
// std::deque of records larger than a few hundred bytes cannot promise. Elements are reached by position.
#pragma once

#include <cstddef>
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
  T& operator[](size_t i) { return slots_[(head_ + i) & (slots_.size() - 1)]; }
  const T& operator[](size_t i) const { return slots_[(head_ + i) & (slots_.size() - 1)]; }

  void PushBack(T value) {
    if (size_ == slots_.size()) Grow();
    ++size_;
    (*this)[size_ - 1] = std::move(value);
  }
  // REQUIRES: !empty(). What the element owns is released now, not when its slot is reused.
  void PopFront() {
    LH_CHECK_OP(size_, >, 0u);
    slots_[head_] = T();
    head_ = (head_ + 1) & (slots_.size() - 1);
    --size_;
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
  void Grow() {
    std::vector<T> larger(slots_.empty() ? 64 : slots_.size() * 2);
    for (size_t i = 0; i < size_; ++i) larger[i] = std::move((*this)[i]);
    LH_CHECK((larger.size() & (larger.size() - 1)) == 0);
    slots_ = std::move(larger);
    head_ = 0;
  }

  std::vector<T> slots_;
  size_t head_ = 0;
  size_t size_ = 0;
};

}  // namespace longhaul::transport
