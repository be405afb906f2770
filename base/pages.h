// Large zeroed memory, straight from the operating system: it costs nothing until it is touched. A size that
// the system refuses is known at once; what is granted may still be missing when it is touched. Giving
// touched pages back takes the kernel some 110 ms per GiB, so a thread that must not be away for so long
// gives them back in slices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace longhaul {

// From here on memory is mapped. malloc's own threshold moves with what is freed: a table of 9 MB that was
// once given back is from then on cleared by hand.
#ifdef LONGHAUL_FUZZING
inline constexpr size_t kMappedBytes = SIZE_MAX;  // fuzzers put the allocator's memory back, and no other
#else
inline constexpr size_t kMappedBytes = size_t{256} << 10;
#endif

// Of the machine: 4 KiB on x86-64, up to 64 KiB elsewhere.
size_t PageBytes();
// Maps `bytes` zero bytes; null when the system refuses. bytes > 0.
void* MapPages(size_t bytes);
// Gives them back: at once, or in slices where the thread has a DeferredUnmap.
void UnmapPages(void* pages, size_t bytes);

// While it lives, what its thread unmaps waits for Slice. The destructor gives back all of it. One per
// thread.
class DeferredUnmap {
 public:
  static constexpr size_t kSliceBytes = size_t{2} << 20;  // 512 pages: 0.5 ms

  DeferredUnmap();
  ~DeferredUnmap();
  DeferredUnmap(const DeferredUnmap&) = delete;
  DeferredUnmap& operator=(const DeferredUnmap&) = delete;

  bool HasWork() const { return !waiting_.empty(); }
  // Gives back at most kSliceBytes.
  void Slice();

 private:
  friend void* MapPages(size_t bytes);
  friend void UnmapPages(void* pages, size_t bytes);
  struct Range {
    uint8_t* begin;
    size_t bytes;
  };
  void Defer(uint8_t* begin, size_t bytes);
  void UnmapAll();

  std::vector<Range> waiting_;
};

// For vectors that may be large: reserved memory is touched as it is used.
template <typename T>
struct PagesAllocator {
  using value_type = T;
  PagesAllocator() = default;
  template <typename U>
  PagesAllocator(const PagesAllocator<U>&) {}  // NOLINT: an allocator converts

  T* allocate(size_t count) {
    if (count > SIZE_MAX / sizeof(T)) throw std::bad_array_new_length();
    if (count * sizeof(T) < kMappedBytes) return static_cast<T*>(::operator new(count * sizeof(T)));
    void* const pages = MapPages(count * sizeof(T));
    if (pages == nullptr) throw std::bad_alloc();
    return static_cast<T*>(pages);
  }
  void deallocate(T* values, size_t count) {
    if (count * sizeof(T) < kMappedBytes) return ::operator delete(values);
    UnmapPages(values, count * sizeof(T));
  }
  bool operator==(const PagesAllocator&) const = default;
};
template <typename T>
using PagedVector = std::vector<T, PagesAllocator<T>>;

}  // namespace longhaul
