#include "base/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.h"

namespace longhaul {
namespace {

thread_local DeferredUnmap* t_deferred = nullptr;

size_t WholePages(size_t bytes) { return (bytes + PageBytes() - 1) / PageBytes() * PageBytes(); }

void* TryMap(size_t bytes) {
  void* const pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return pages == MAP_FAILED ? nullptr : pages;
}

}  // namespace

size_t PageBytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

void* MapPages(size_t bytes) {
  LH_CHECK_OP(bytes, >, size_t{0});
  if (bytes > SIZE_MAX - PageBytes()) return nullptr;
  void* pages = TryMap(WholePages(bytes));
  if (pages == nullptr && t_deferred != nullptr && t_deferred->HasWork()) {
    t_deferred->UnmapAll();  // it may be what is missing
    pages = TryMap(WholePages(bytes));
  }
  return pages;
}

void UnmapPages(void* pages, size_t bytes) {
  try {
    if (t_deferred != nullptr) return t_deferred->Defer(static_cast<uint8_t*>(pages), WholePages(bytes));
  } catch (const std::bad_alloc&) {  // no memory to remember it: at once
  }
  munmap(pages, WholePages(bytes));
}

void DeferredUnmap::Defer(uint8_t* begin, size_t bytes) { waiting_.push_back({begin, bytes}); }

DeferredUnmap::DeferredUnmap() {
  LH_CHECK(t_deferred == nullptr);
  t_deferred = this;
}

DeferredUnmap::~DeferredUnmap() {
  UnmapAll();
  t_deferred = nullptr;
}

void DeferredUnmap::Slice() {
  for (size_t left = kSliceBytes; left > 0 && !waiting_.empty();) {
    Range& range = waiting_.back();
    const size_t bytes = std::min(left, range.bytes);
    range.bytes -= bytes;
    munmap(range.begin + range.bytes, bytes);
    left -= bytes;
    if (range.bytes == 0) waiting_.pop_back();
  }
}

void DeferredUnmap::UnmapAll() {
  for (const Range& range : waiting_) munmap(range.begin, range.bytes);
  waiting_.clear();
}

}  // namespace longhaul
