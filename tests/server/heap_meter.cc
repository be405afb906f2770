#include "tests/server/heap_meter.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "base/pages.h"

namespace longhaul::server {
namespace {

std::atomic<int64_t> g_bytes{0};
std::atomic<int64_t> g_peak{0};
int64_t g_begin = 0;
int64_t g_begin_mapped = 0;

int64_t Mapped() { return static_cast<int64_t>(MappedBytes()); }

void* AllocateOrNull(size_t size) {
  void* block = std::malloc(size == 0 ? 1 : size);
  if (block == nullptr) return nullptr;
  g_bytes += static_cast<int64_t>(malloc_usable_size(block));
  g_peak = std::max(g_peak.load(), g_bytes.load());
  return block;
}

void* Allocate(size_t size) {
  void* block = AllocateOrNull(size);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

void Free(void* block) {
  if (block != nullptr) g_bytes -= static_cast<int64_t>(malloc_usable_size(block));
  std::free(block);
}

}  // namespace

HeapMeter::HeapMeter() {
  g_begin = g_bytes;
  g_begin_mapped = Mapped();
  g_peak = g_bytes.load();
}
int64_t HeapMeter::grown() const { return g_bytes - g_begin + Mapped() - g_begin_mapped; }
int64_t HeapMeter::peak() const { return g_peak - g_begin + std::max<int64_t>(0, Mapped() - g_begin_mapped); }

}  // namespace longhaul::server

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
