// Compiled without sanitizers (CMakeLists.txt): this reads and writes what they guard, and their own bytes.
// For that no template of a library is used here that others use too: the linker keeps one of them.
#include "tests/fuzz/arena.h"

#include <sanitizer/asan_interface.h>
#include <sanitizer/lsan_interface.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "tests/fuzz/property.h"

// The linker sends the program's calls of these to __wrap_NAME (CMakeLists.txt).
extern "C" {
void* __real_malloc(size_t bytes);
void* __real_calloc(size_t count, size_t bytes);
void* __real_realloc(void* block, size_t bytes);
int __real_posix_memalign(void** block, size_t alignment, size_t bytes);
void* __real_aligned_alloc(size_t alignment, size_t bytes);
void __real_free(void* block);
int __real___cxa_guard_acquire(uint64_t* guard);
void __real___cxa_guard_release(uint64_t* guard);
}

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
// Of what is not initialized, as much as AddressSanitizer fills, with the same byte: every run is alike.
constexpr uint8_t kNew = 0xbe;
constexpr size_t kFilled = 4096;
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
int statics = 0;              // local ones that are being made: they outlive every input
uintptr_t highest = kRegion;  // ever used
size_t shadow_offset = 0;

bool Takes() { return open && statics == 0; }

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "arena: %s\n", what);
  std::abort();
}

constexpr size_t RoundedUp(size_t n, size_t step) { return (n + step - 1) / step * step; }
uint8_t* ShadowOf(uintptr_t address) {
  return reinterpret_cast<uint8_t*>(address / kShadowed + shadow_offset);
}

// Not memcpy and memset: AddressSanitizer has its own, which check what they touch.
void Copy(void* to, const void* from, size_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}
void Fill(void* to, uint8_t value, size_t bytes) {
  asm volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(value) : "memory");
}
void Poison(uintptr_t from, size_t bytes, uint8_t value) { Fill(ShadowOf(from), value, bytes / kShadowed); }
void Unpoison(uintptr_t from, size_t bytes) {
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

Block* TakeFreed(Queue& queue) {
  if (queue.count <= kQuarantine) return nullptr;
  Block* const block = queue.first;
  queue.first = block->next;
  --queue.count;
  return block;
}

Block* TakeNew(size_t total) {
  if (total > kRegion + kRegionBytes - heap.top) Die("an input allocates without bound");
  auto* const block = reinterpret_cast<Block*>(heap.top);
  heap.top += total;
  highest = std::max(highest, heap.top);
  return block;
}

void* Allocate(size_t bytes) {
  if (bytes >= kRegionBytes) Die("an input allocates without bound");
  const auto [index, total] = ClassOf(sizeof(Block) + RoundedUp(std::max<size_t>(bytes, 1), kGranule));
  Block* block = TakeFreed(heap.freed[index]);
  if (block == nullptr) block = TakeNew(total);
  block->total = static_cast<uint32_t>(total);
  block->bytes = static_cast<uint32_t>(bytes);
  heap.live += total;
  heap.allocated += total;
  const uintptr_t user = reinterpret_cast<uintptr_t>(block) + sizeof(Block);
  Poison(reinterpret_cast<uintptr_t>(block), total, kRedzone);
  Unpoison(user, std::max<size_t>(bytes, 1));
  Fill(reinterpret_cast<void*>(user), kNew, std::min(bytes, kFilled));
  return reinterpret_cast<void*>(user);
}

// The header before a block of ours; its memory begins at a multiple of `alignment` of the region.
void* AllocateAligned(size_t alignment, size_t bytes) {
  if (alignment <= kGranule) return Allocate(bytes);
  if (bytes >= kRegionBytes) Die("an input allocates without bound");
  // Such blocks are few, and not used again before Restore.
  const uintptr_t user = RoundedUp(heap.top + sizeof(Block), alignment);
  auto* const block = reinterpret_cast<Block*>(user - sizeof(Block));
  const size_t total = sizeof(Block) + RoundedUp(std::max<size_t>(bytes, 1), kGranule);
  const uintptr_t from = heap.top;
  (void)TakeNew(user - sizeof(Block) + total - from);
  block->total = 0;  // of no class
  block->bytes = static_cast<uint32_t>(bytes);
  heap.live += total;
  heap.allocated += total;
  Poison(from, user - sizeof(Block) + total - from, kRedzone);
  Unpoison(user, std::max<size_t>(bytes, 1));
  Fill(reinterpret_cast<void*>(user), kNew, std::min(bytes, kFilled));
  return reinterpret_cast<void*>(user);
}

bool IsOurs(const void* block) {
  const auto at = reinterpret_cast<uintptr_t>(block);
  return at >= kRegion && at < kRegion + kRegionBytes;
}

size_t BytesOf(void* user) { return (static_cast<Block*>(user) - 1)->bytes; }

void Free(void* user) {
  Block* const block = static_cast<Block*>(user) - 1;
  const auto at = reinterpret_cast<uintptr_t>(user);
  // Freed twice, or not the beginning of a block: AddressSanitizer's byte of it is not that of living memory.
  const uint8_t shadow = *ShadowOf(at);
  if (shadow >= kShadowed || *ShadowOf(at - kShadowed) != kRedzone)
    Die("a block is freed twice, or from its middle");
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
  size_t used;
  uint8_t* bytes;
  uint8_t* shadow;
};

void Arena::Clear() {
  Map();
  heap = Heap();
  Poison(kRegion, kRegionBytes, kRedzone);
}

void Arena::Open() { open = true; }
void Arena::Close() { open = false; }

const Arena::Kept* Arena::Keep() {
  auto* const kept = static_cast<Kept*>(__real_malloc(sizeof(Kept)));
  heap.allocated = 0;
  kept->heap = heap;
  kept->used = heap.top - kRegion;
  kept->bytes = static_cast<uint8_t*>(__real_malloc(kept->used));
  kept->shadow = static_cast<uint8_t*>(__real_malloc(kept->used / kShadowed));
  Copy(kept->bytes, reinterpret_cast<void*>(kRegion), kept->used);
  Copy(kept->shadow, ShadowOf(kRegion), kept->used / kShadowed);
  return kept;
}

void Arena::Restore(const Kept& kept) {
  heap = kept.heap;
  Copy(reinterpret_cast<void*>(kRegion), kept.bytes, kept.used);
  Copy(ShadowOf(kRegion), kept.shadow, kept.used / kShadowed);
  const uintptr_t end = kRegion + kept.used;
  if (highest > end) Poison(end, highest - end, kRedzone);
  highest = end;
}

size_t Arena::live_bytes() { return heap.live; }
uint64_t Arena::allocated_bytes() { return heap.allocated; }

}  // namespace longhaul::fuzz

// --- The program's allocations ---

namespace lf = longhaul::fuzz;

extern "C" {
void* __wrap_malloc(size_t bytes) { return lf::Takes() ? lf::Allocate(bytes) : __real_malloc(bytes); }
void* __wrap_calloc(size_t count, size_t bytes) {
  if (!lf::Takes()) return __real_calloc(count, bytes);
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
  if (block == nullptr ? !lf::Takes() : !lf::IsOurs(block)) return __real_realloc(block, bytes);
  void* const moved = __wrap_malloc(bytes);
  if (block != nullptr) std::memcpy(moved, block, std::min(bytes, lf::BytesOf(block)));
  __wrap_free(block);
  return moved;
}
int __wrap_posix_memalign(void** block, size_t alignment, size_t bytes) {
  if (!lf::Takes()) return __real_posix_memalign(block, alignment, bytes);
  *block = lf::AllocateAligned(alignment, bytes);
  return 0;
}
void* __wrap_aligned_alloc(size_t alignment, size_t bytes) {
  return lf::Takes() ? lf::AllocateAligned(alignment, bytes) : __real_aligned_alloc(alignment, bytes);
}

int __wrap___cxa_guard_acquire(uint64_t* guard) {
  const int first = __real___cxa_guard_acquire(guard);
  lf::statics += first;
  return first;
}
void __wrap___cxa_guard_release(uint64_t* guard) {
  --lf::statics;
  __real___cxa_guard_release(guard);
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
