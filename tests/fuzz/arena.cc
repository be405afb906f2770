#include "tests/fuzz/arena.h"

#include <sanitizer/asan_interface.h>
#include <sanitizer/lsan_interface.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <vector>

#include "tests/fuzz/property.h"

// The linker sends the program's calls of these to __wrap_NAME (CMakeLists.txt).
extern "C" {
void* __real_malloc(size_t bytes);
void* __real_calloc(size_t count, size_t bytes);
void* __real_realloc(void* block, size_t bytes);
int __real_posix_memalign(void** block, size_t alignment, size_t bytes);
void* __real_aligned_alloc(size_t alignment, size_t bytes);
void __real_free(void* block);
}

// Reads and writes what AddressSanitizer guards: headers, and its own bytes.
#define UNCHECKED __attribute__((no_sanitize("address", "undefined"), noinline))

namespace longhaul::fuzz {
namespace {

constexpr size_t kRegionBytes = size_t{64} << 20;
constexpr uintptr_t kRegion = 0x4a0000000000;
constexpr size_t kGranule = 16;
// Of AddressSanitizer: one byte stands for eight; these are its own values for heap memory.
constexpr size_t kShadowed = 8;
constexpr uint8_t kRedzone = 0xfa;
constexpr uint8_t kFreed = 0xfd;
// Freed blocks of a size that wait before one is used again.
constexpr uint32_t kQuarantine = 16;
constexpr size_t kSmall = 1024;
constexpr size_t kClasses = 65 + 8 * 17;

struct Block {
  uint32_t total;  // bytes, this header included; 0: not to be used again
  uint32_t bytes;  // as asked for
  Block* next;     // freed before this one, of the same size
};
static_assert(sizeof(Block) == kGranule);

struct Queue {
  Block* first = nullptr;
  Block* last = nullptr;
  uint32_t count = 0;
};

struct Heap {
  uintptr_t top = kRegion;
  size_t live = 0;
  uint64_t allocated = 0;
  Queue freed[kClasses];
};
Heap heap;

bool mapped = false;
bool open = false;
uintptr_t highest = kRegion;  // ever used
size_t shadow_offset = 0;

constexpr size_t RoundedUp(size_t n, size_t step) { return (n + step - 1) / step * step; }
uint8_t* ShadowOf(uintptr_t address) {
  return reinterpret_cast<uint8_t*>(address / kShadowed + shadow_offset);
}

// Not memcpy and memset: AddressSanitizer checks what those touch.
UNCHECKED void Copy(void* to, const void* from, size_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}
UNCHECKED void Fill(void* to, uint8_t value, size_t bytes) {
  asm volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(value) : "memory");
}
void Poison(uintptr_t from, size_t bytes, uint8_t value) { Fill(ShadowOf(from), value, bytes / kShadowed); }
UNCHECKED void Unpoison(uintptr_t from, size_t bytes) {
  Fill(ShadowOf(from), 0, bytes / kShadowed);
  if (bytes % kShadowed != 0) *ShadowOf(from + bytes) = static_cast<uint8_t>(bytes % kShadowed);
}

// Sizes are multiples of 16 up to kSmall, then eight steps an octave.
struct Class {
  size_t index;
  size_t total;
};
Class ClassOf(size_t total) {
  if (total <= kSmall) return {total / kGranule, total};
  const auto octave = static_cast<size_t>(std::bit_width(total - 1));
  const size_t step = size_t{1} << (octave - 4);
  const size_t rounded = RoundedUp(total, step);
  return {65 + (octave - 11) * 8 + (rounded / step - 9), rounded};
}

void Map() {
  if (mapped) return;
  mapped = true;
  void* const at = ::mmap(reinterpret_cast<void*>(kRegion), kRegionBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  FUZZ_REQUIRE(at == reinterpret_cast<void*>(kRegion));
  size_t scale = 0;
  __asan_get_shadow_mapping(&scale, &shadow_offset);
  FUZZ_REQUIRE(size_t{1} << scale == kShadowed);
  __lsan_register_root_region(at, kRegionBytes);
}

UNCHECKED Block* TakeFreed(Queue& queue) {
  if (queue.count <= kQuarantine) return nullptr;
  Block* const block = queue.first;
  queue.first = block->next;
  --queue.count;
  return block;
}

UNCHECKED Block* TakeNew(size_t total) {
  FUZZ_REQUIRE(heap.top + total <= kRegion + kRegionBytes);  // an input allocates without bound
  auto* const block = reinterpret_cast<Block*>(heap.top);
  heap.top += total;
  highest = std::max(highest, heap.top);
  return block;
}

UNCHECKED void* Allocate(size_t bytes) {
  const auto [index, total] = ClassOf(sizeof(Block) + RoundedUp(std::max<size_t>(bytes, 1), kGranule));
  FUZZ_REQUIRE(total < kRegionBytes);
  Block* block = TakeFreed(heap.freed[index]);
  if (block == nullptr) block = TakeNew(total);
  block->total = static_cast<uint32_t>(total);
  block->bytes = static_cast<uint32_t>(bytes);
  heap.live += total;
  heap.allocated += total;
  const uintptr_t user = reinterpret_cast<uintptr_t>(block) + sizeof(Block);
  Poison(reinterpret_cast<uintptr_t>(block), total, kRedzone);
  Unpoison(user, std::max<size_t>(bytes, 1));
  return reinterpret_cast<void*>(user);
}

// The header before a block of ours; its memory begins at a multiple of `alignment` of the region.
UNCHECKED void* AllocateAligned(size_t alignment, size_t bytes) {
  if (alignment <= kGranule) return Allocate(bytes);
  // Such blocks are few, and not used again before Restore.
  const uintptr_t user = RoundedUp(heap.top + sizeof(Block), alignment);
  auto* const block = reinterpret_cast<Block*>(user - sizeof(Block));
  const size_t total = sizeof(Block) + RoundedUp(std::max<size_t>(bytes, 1), kGranule);
  (void)TakeNew(user - sizeof(Block) + total - heap.top);
  block->total = 0;  // of no class
  block->bytes = static_cast<uint32_t>(bytes);
  heap.live += total;
  heap.allocated += total;
  Poison(user - sizeof(Block), total, kRedzone);
  Unpoison(user, std::max<size_t>(bytes, 1));
  return reinterpret_cast<void*>(user);
}

bool IsOurs(const void* block) {
  const auto at = reinterpret_cast<uintptr_t>(block);
  return at >= kRegion && at < kRegion + kRegionBytes;
}

UNCHECKED size_t BytesOf(void* user) { return (static_cast<Block*>(user) - 1)->bytes; }

UNCHECKED void Free(void* user) {
  Block* const block = static_cast<Block*>(user) - 1;
  const auto at = reinterpret_cast<uintptr_t>(user);
  // Freed twice, or not the beginning of a block: AddressSanitizer's byte of it is not that of living memory.
  const uint8_t shadow = *ShadowOf(at);
  FUZZ_REQUIRE(shadow < kShadowed && *ShadowOf(at - kShadowed) == kRedzone);
  const size_t total = sizeof(Block) + RoundedUp(std::max<size_t>(block->bytes, 1), kGranule);
  heap.live -= block->total != 0 ? block->total : total;
  Poison(at, total - sizeof(Block), kFreed);
  if (block->total == 0) return;
  Queue& queue = heap.freed[ClassOf(block->total).index];
  block->next = nullptr;
  (queue.count == 0 ? queue.first : queue.last->next) = block;
  queue.last = block;
  ++queue.count;
}

}  // namespace

// --- Keeping ---

class Arena::Kept {
 public:
  Heap heap;
  std::vector<uint8_t> bytes;
  std::vector<uint8_t> shadow;
};

UNCHECKED void Arena::Clear() {
  Map();
  heap = Heap();
  Poison(kRegion, kRegionBytes, kRedzone);
}

void Arena::Open() { open = true; }
void Arena::Close() { open = false; }

UNCHECKED std::shared_ptr<const Arena::Kept> Arena::Keep() {
  auto kept = std::make_shared<Kept>();
  const size_t used = heap.top - kRegion;
  heap.allocated = 0;
  kept->heap = heap;
  kept->bytes.resize(used);
  kept->shadow.resize(used / kShadowed);
  Copy(kept->bytes.data(), reinterpret_cast<void*>(kRegion), used);
  Copy(kept->shadow.data(), ShadowOf(kRegion), used / kShadowed);
  return kept;
}

UNCHECKED void Arena::Restore(const Kept& kept) {
  heap = kept.heap;
  const size_t used = kept.bytes.size();
  Copy(reinterpret_cast<void*>(kRegion), kept.bytes.data(), used);
  Copy(ShadowOf(kRegion), kept.shadow.data(), used / kShadowed);
  if (highest > kRegion + used)
    Poison(kRegion + used, RoundedUp(highest - kRegion - used, kGranule), kRedzone);
  highest = kRegion + used;
}

size_t Arena::live_bytes() { return heap.live; }
uint64_t Arena::allocated_bytes() { return heap.allocated; }

}  // namespace longhaul::fuzz

// --- The program's allocations ---

namespace lf = longhaul::fuzz;

extern "C" {
void* __wrap_malloc(size_t bytes) { return lf::open ? lf::Allocate(bytes) : __real_malloc(bytes); }
void* __wrap_calloc(size_t count, size_t bytes) {
  if (!lf::open) return __real_calloc(count, bytes);
  size_t all = 0;
  if (__builtin_mul_overflow(count, bytes, &all)) return nullptr;
  void* const block = lf::Allocate(all);
  std::memset(block, 0, all);
  return block;
}
void __wrap_free(void* block) {
  if (block == nullptr) return;
  lf::IsOurs(block) ? lf::Free(block) : __real_free(block);
}
void* __wrap_realloc(void* block, size_t bytes) {
  if (!lf::open && !lf::IsOurs(block)) return __real_realloc(block, bytes);
  void* const moved = __wrap_malloc(bytes);
  if (block != nullptr) std::memcpy(moved, block, std::min(bytes, lf::BytesOf(block)));
  __wrap_free(block);
  return moved;
}
int __wrap_posix_memalign(void** block, size_t alignment, size_t bytes) {
  if (!lf::open) return __real_posix_memalign(block, alignment, bytes);
  *block = lf::AllocateAligned(alignment, bytes);
  return 0;
}
void* __wrap_aligned_alloc(size_t alignment, size_t bytes) {
  return lf::open ? lf::AllocateAligned(alignment, bytes) : __real_aligned_alloc(alignment, bytes);
}
}

namespace {
void* New(size_t bytes, size_t alignment = 0) {
  void* block = nullptr;
  if (alignment <= 16) {
    block = __wrap_malloc(bytes);
  } else if (__wrap_posix_memalign(&block, alignment, bytes) != 0) {
    block = nullptr;
  }
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
}  // namespace

void* operator new(size_t bytes) { return New(bytes); }
void* operator new[](size_t bytes) { return New(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return __wrap_malloc(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return __wrap_malloc(bytes); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return New(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return New(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* block) noexcept { __wrap_free(block); }
void operator delete[](void* block) noexcept { __wrap_free(block); }
void operator delete(void* block, size_t) noexcept { __wrap_free(block); }
void operator delete[](void* block, size_t) noexcept { __wrap_free(block); }
void operator delete(void* block, const std::nothrow_t&) noexcept { __wrap_free(block); }
void operator delete[](void* block, const std::nothrow_t&) noexcept { __wrap_free(block); }
void operator delete(void* block, std::align_val_t) noexcept { __wrap_free(block); }
void operator delete[](void* block, std::align_val_t) noexcept { __wrap_free(block); }
void operator delete(void* block, size_t, std::align_val_t) noexcept { __wrap_free(block); }
void operator delete[](void* block, size_t, std::align_val_t) noexcept { __wrap_free(block); }

// --- What the program compares (CMakeLists.txt) ---

extern "C" {
#define NOT_TRACED(size, type)                                         \
  UNCHECKED void __wrap___sanitizer_cov_trace_cmp##size(type, type) {} \
  UNCHECKED void __wrap___sanitizer_cov_trace_const_cmp##size(type, type) {}
NOT_TRACED(1, uint8_t)
NOT_TRACED(2, uint16_t)
NOT_TRACED(4, uint32_t)
NOT_TRACED(8, uint64_t)
}
