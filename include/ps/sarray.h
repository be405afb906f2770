// An array whose copies share the elements: copying and slicing copy a pointer. Of a vector or a list the
// elements are copied. For elements without constructors, such as numbers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <ostream>
#include <type_traits>
#include <utility>
#include <vector>

#include "ps/base.h"

namespace ps {

template <typename V>
class SArray {
  static_assert(std::is_trivially_copyable_v<V>, "elements are copied as bytes");

 public:
  SArray() = default;
  explicit SArray(size_t size, V value = V()) { resize(size, value); }
  explicit SArray(const std::vector<V>& values) { CopyFrom(values.data(), values.size()); }
  // Shares the vector's elements.
  explicit SArray(const std::shared_ptr<std::vector<V>>& values)
      : size_(values->size()), capacity_(values->size()), elements_(values, values->data()) {}
  // Borrows `data`, or with `deletable` takes it over from new[].
  SArray(V* data, size_t size, bool deletable = false) {
    if (deletable) {
      reset(data, size, [](V* p) { delete[] p; });
    } else {
      reset(data, size, [](V*) {});
    }
  }
  template <typename W>
  SArray(const std::initializer_list<W>& values) {
    CopyFrom(values.begin(), values.end());
  }
  // The same bytes as elements of another type. REQUIRES: they are a whole number of V.
  template <typename W>
  explicit SArray(const SArray<W>& other) {
    *this = other;
  }
  template <typename W>
  void operator=(const SArray<W>& other) {
    const size_t bytes = other.size() * sizeof(W);
    CHECK_EQ(bytes % sizeof(V), size_t{0}) << "no whole number of elements";
    size_ = bytes / sizeof(V);
    capacity_ = other.capacity() * sizeof(W) / sizeof(V);
    elements_ = std::shared_ptr<V>(other.ptr(), reinterpret_cast<V*>(other.data()));
  }
  template <typename W>
  void operator=(const std::initializer_list<W>& values) {
    CopyFrom(values.begin(), values.end());
  }

  void CopyFrom(const V* data, size_t size) {
    std::shared_ptr<V> fresh = Allocate(size);
    std::copy_n(data, size, fresh.get());
    Hold(std::move(fresh), size, size);
  }
  void CopyFrom(const SArray<V>& other) {
    if (this != &other) CopyFrom(other.data(), other.size());
  }
  template <typename Iterator>
  void CopyFrom(const Iterator& first, const Iterator& last) {
    const auto size = static_cast<size_t>(std::distance(first, last));
    std::shared_ptr<V> fresh = Allocate(size);
    std::transform(first, last, fresh.get(), [](const auto& value) { return static_cast<V>(value); });
    Hold(std::move(fresh), size, size);
  }

  template <typename Deleter>
  void reset(V* data, size_t size, Deleter deleter) {
    Hold(std::shared_ptr<V>(data, deleter), size, size);
  }
  // Beyond the capacity the elements move: copies keep the old ones.
  void resize(size_t size, V value = V()) {
    const size_t before = size_;
    reserve(size);
    size_ = size;
    if (size > before) std::fill(data() + before, data() + size, value);
  }
  void reserve(size_t capacity) {
    if (capacity <= capacity_) return;
    std::shared_ptr<V> fresh = Allocate(capacity);
    std::copy_n(data(), size_, fresh.get());
    Hold(std::move(fresh), size_, capacity);
  }
  void clear() { Hold(nullptr, 0, 0); }

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  size_t capacity() const { return capacity_; }
  V* data() const { return elements_.get(); }
  V* begin() { return data(); }
  V* end() { return data() + size_; }
  const V* begin() const { return data(); }
  const V* end() const { return data() + size_; }
  V& operator[](size_t i) { return data()[i]; }
  const V& operator[](size_t i) const { return data()[i]; }
  V front() const { return At(0); }
  V back() const { return At(size_ - 1); }
  std::shared_ptr<V>& ptr() { return elements_; }
  const std::shared_ptr<V>& ptr() const { return elements_; }

  void push_back(const V& value) {
    const V copy = value;
    if (size_ == capacity_) reserve(size_ * 2 + 4);
    data()[size_++] = copy;
  }
  void pop_back() {
    if (size_ > 0) --size_;
  }
  void append(const SArray<V>& other) {
    const SArray<V> kept = other;  // perhaps this array
    const size_t before = size_;
    resize(before + kept.size());
    std::copy_n(kept.data(), kept.size(), data() + before);
  }
  // Elements [begin, end), shared.
  SArray<V> segment(size_t begin, size_t end) const {
    CHECK_LE(begin, end);
    CHECK_LE(end, size_);
    SArray<V> part;
    part.Hold(std::shared_ptr<V>(elements_, data() + begin), end - begin, end - begin);
    return part;
  }

 private:
  static std::shared_ptr<V> Allocate(size_t size) {
    return std::shared_ptr<V>(new V[size], [](V* p) { delete[] p; });
  }
  void Hold(std::shared_ptr<V> elements, size_t size, size_t capacity) {
    elements_ = std::move(elements);
    size_ = size;
    capacity_ = capacity;
  }
  V At(size_t i) const {
    CHECK(!empty());
    return data()[i];
  }

  size_t size_ = 0;
  size_t capacity_ = 0;
  std::shared_ptr<V> elements_;
};

// Positions of the elements in [lower, upper). REQUIRES: the array is sorted.
template <typename V>
Range FindRange(const SArray<V>& array, V lower, V upper) {
  if (upper <= lower) return {};
  const V* const first = std::lower_bound(array.begin(), array.end(), lower);
  const V* const last = std::lower_bound(first, array.end(), upper);
  return {static_cast<uint64_t>(first - array.begin()), static_cast<uint64_t>(last - array.begin())};
}

template <typename V>
std::ostream& operator<<(std::ostream& out, const SArray<V>& array) {
  constexpr size_t kShown = 10;
  out << '[' << array.size() << "]:";
  for (size_t i = 0; i < std::min(array.size(), kShown); ++i) out << ' ' << array[i];
  return out << (array.size() > kShown ? " ..." : "");
}

}  // namespace ps
