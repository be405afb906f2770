#include "tests/crypto/heap_watch.h"

#include <malloc.h>
#include <openssl/crypto.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "transport/crypto/openssl_memory.h"

namespace longhaul::crypto {
namespace {

std::atomic<bool> g_watching{false};
std::atomic<bool> g_wipes{false};
std::atomic<uint64_t> g_allocations{0};
std::atomic<uint64_t> g_leaks{0};
std::atomic<int64_t> g_blocks{0};
uint8_t g_secret[64];
size_t g_secret_size = 0;

void* Allocate(size_t size) {
  if (g_watching) ++g_allocations, ++g_blocks;
  return std::malloc(size);
}

void Search(void* block) {
  if (block == nullptr || !g_watching) return;
  --g_blocks;
  if (g_secret_size == 0) return;
  if (memmem(block, malloc_usable_size(block), g_secret, g_secret_size) == nullptr) return;
  ++g_leaks;
  // Else the secret stays in the freed block and counts again when a later owner frees it without writing.
  std::memset(block, 0, malloc_usable_size(block));
}

void* OpenSslMalloc(size_t size, const char*, int) { return Allocate(size); }
// As in programs, which let OpenSSL's blocks be wiped; with g_wipes off, as OpenSSL leaves them.
void OpenSslFree(void* block, const char*, int) {
  if (g_wipes) WipeBlock(block);
  Search(block);
  std::free(block);
}
// A block that moves is freed where it was.
void* OpenSslRealloc(void* block, size_t size, const char*, int) {
  void* moved = Allocate(size);
  if (block == nullptr || moved == nullptr) return moved;
  const size_t old_size = malloc_usable_size(block);
  std::memcpy(moved, block, old_size < size ? old_size : size);
  OpenSslFree(block, nullptr, 0);
  return moved;
}

// OpenSSL takes these only before its first allocation, so before main.
const bool g_hooked = CRYPTO_set_mem_functions(&OpenSslMalloc, &OpenSslRealloc, &OpenSslFree) == 1;

}  // namespace

HeapWatch::HeapWatch(ByteSpan secret, bool openssl_is_wiped) {
  g_wipes = openssl_is_wiped;
  g_secret_size = std::min(secret.size(), sizeof(g_secret));
  if (g_secret_size > 0) std::memcpy(g_secret, secret.data(), g_secret_size);
  g_allocations = 0;
  g_leaks = 0;
  g_blocks = 0;
  g_watching = true;
}

HeapWatch::~HeapWatch() { g_watching = g_wipes = false; }

bool HeapWatch::SeesOpenSsl() { return g_hooked; }
uint64_t HeapWatch::allocations() const { return g_allocations; }
int64_t HeapWatch::blocks() const { return g_blocks; }
uint64_t HeapWatch::leaks() const { return g_leaks; }

namespace {
void* AllocateOrThrow(size_t size) {
  if (void* block = Allocate(size == 0 ? 1 : size)) return block;
  throw std::bad_alloc();
}
void SearchAndFree(void* block) {
  Search(block);
  std::free(block);
}
}  // namespace

}  // namespace longhaul::crypto

void* operator new(size_t size) { return longhaul::crypto::AllocateOrThrow(size); }
void* operator new[](size_t size) { return longhaul::crypto::AllocateOrThrow(size); }
void operator delete(void* block) noexcept { longhaul::crypto::SearchAndFree(block); }
void operator delete[](void* block) noexcept { longhaul::crypto::SearchAndFree(block); }
void operator delete(void* block, size_t) noexcept { longhaul::crypto::SearchAndFree(block); }
void operator delete[](void* block, size_t) noexcept { longhaul::crypto::SearchAndFree(block); }
