// A fixed number of values that begin as zeros, without a pass over them: pages are given when they are first
// touched (base/pages.h). Not for small arrays, where std::vector is as good.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include "base/pages.h"

namespace longhaul {

template <typename T>
class ZeroedArray {
  static_assert(std::is_trivial_v<T>, "all bits zero is how a value begins");

 public:
  ZeroedArray() = default;
  // Throws std::bad_alloc when there is not so much memory.
  explicit ZeroedArray(size_t count) : count_(count) {
    if (count > SIZE_MAX / sizeof(T)) throw std::bad_array_new_length();
    if (count == 0) return;
    values_ = static_cast<T*>(mapped() ? MapPages(bytes()) : std::calloc(count, sizeof(T)));
    if (values_ == nullptr) throw std::bad_alloc();
  }
  ~ZeroedArray() {
    if (values_ == nullptr) return;
    mapped() ? UnmapPages(values_, bytes()) : std::free(values_);
  }
  ZeroedArray(ZeroedArray&& other) noexcept
      : values_(std::exchange(other.values_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  ZeroedArray& operator=(ZeroedArray&& other) noexcept {
    std::swap(values_, other.values_);
    std::swap(count_, other.count_);
    return *this;
  }

  size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  size_t bytes() const { return count_ * sizeof(T); }
  T* data() { return values_; }
  const T* data() const { return values_; }
  T& operator[](size_t i) { return values_[i]; }
  const T& operator[](size_t i) const { return values_[i]; }
  std::span<T> span() { return {values_, count_}; }
  std::span<const T> span() const { return {values_, count_}; }

 private:
  bool mapped() const { return bytes() >= kMappedBytes; }

  T* values_ = nullptr;
  size_t count_ = 0;
};

}  // namespace longhaul
