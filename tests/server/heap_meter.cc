#include "tests/server/heap_meter.h"

#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "base/pages.h"

namespace longhaul::server {
namespace {

std::atomic<int64_t> g_bytes{0};  // heap and mapped pages
std::atomic<int64_t> g_peak{0};

void Count(int64_t bytes) {
  const int64_t now = g_bytes += bytes;
  for (int64_t peak = g_peak; now > peak && !g_peak.compare_exchange_weak(peak, now);) {
  }
}

int64_t WholePages(size_t bytes) {
  return static_cast<int64_t>((bytes + PageBytes() - 1) / PageBytes() * PageBytes());
}

void* AllocateOrNull(size_t size) {
  void* block = std::malloc(size == 0 ? 1 : size);
  if (block == nullptr) return nullptr;
  Count(static_cast<int64_t>(malloc_usable_size(block)));
  return block;
}

void* Allocate(size_t size) {
  void* block = AllocateOrNull(size);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

void Free(void* block) {
  if (block != nullptr) Count(-static_cast<int64_t>(malloc_usable_size(block)));
  std::free(block);
}

}  // namespace

HeapMeter::HeapMeter() : begin_(g_bytes), outer_peak_(g_peak.exchange(begin_)) {}
HeapMeter::~HeapMeter() { g_peak = std::max(g_peak.load(), outer_peak_); }
int64_t HeapMeter::grown() const { return g_bytes - begin_; }
int64_t HeapMeter::peak() const { return g_peak - begin_; }

}  // namespace longhaul::server

// What base/pages.cc calls: the linker's --wrap.
extern "C" {
void* __real_mmap(void*, size_t, int, int, int, off_t);
int __real_munmap(void*, size_t);

void* __wrap_mmap(void* at, size_t bytes, int protection, int flags, int file, off_t offset) {
  void* const pages = __real_mmap(at, bytes, protection, flags, file, offset);
  if (pages != MAP_FAILED) longhaul::server::Count(longhaul::server::WholePages(bytes));
  return pages;
}
int __wrap_munmap(void* pages, size_t bytes) {
  longhaul::server::Count(-longhaul::server::WholePages(bytes));
  return __real_munmap(pages, bytes);
}
}

void* operator new(size_t size) { return longhaul::server::Allocate(size); }
void* operator new[](size_t size) { return longhaul::server::Allocate(size); }
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return longhaul::server::AllocateOrNull(size);
}
void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return longhaul::server::AllocateOrNull(size);
}
void operator delete(void* block) noexcept { longhaul::server::Free(block); }
void operator delete[](void* block) noexcept { longhaul::server::Free(block); }
void operator delete(void* block, size_t) noexcept { longhaul::server::Free(block); }
void operator delete[](void* block, size_t) noexcept { longhaul::server::Free(block); }
