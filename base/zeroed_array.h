// A fixed number of values that begin as zeros, without a pass over them: the operating system gives large
// allocations as zero pages when they are first touched. Not for small arrays, where std::vector is as good.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <type_traits>

namespace longhaul {

template <typename T>
class ZeroedArray {
  static_assert(std::is_trivial_v<T>, "all bits zero is how a value begins");

 public:
  explicit ZeroedArray(size_t count)
      : values_(static_cast<T*>(std::calloc(count > 0 ? count : 1, sizeof(T)))), count_(count) {
    if (values_ == nullptr) throw std::bad_alloc();
  }

  size_t size() const { return count_; }
  T* data() { return values_.get(); }
  const T* data() const { return values_.get(); }
  T& operator[](size_t i) { return values_[i]; }
  const T& operator[](size_t i) const { return values_[i]; }
  std::span<T> span() { return {values_.get(), count_}; }
  std::span<const T> span() const { return {values_.get(), count_}; }

 private:
  struct Free {
    void operator()(T* values) const { std::free(values); }
  };
  std::unique_ptr<T[], Free> values_;
  size_t count_;
};

}  // namespace longhaul
