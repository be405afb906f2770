#include "transport/crypto/openssl_memory.h"

#include <malloc.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "transport/crypto/secret_bytes.h"

namespace longhaul::crypto {
namespace {

void* TakeBlock(size_t size, const char*, int) { return std::malloc(size); }
void GiveBlock(void* block, const char*, int) {
  WipeBlock(block);
  std::free(block);
}
// A block that moves is wiped where it was.
void* MoveBlock(void* block, size_t size, const char*, int) {
  void* moved = std::malloc(size);
  if (block == nullptr || moved == nullptr) return moved;
  std::memcpy(moved, block, std::min(malloc_usable_size(block), size));
  GiveBlock(block, nullptr, 0);
  return moved;
}

}  // namespace

bool WipeOpenSslMemory() { return CRYPTO_set_mem_functions(&TakeBlock, &MoveBlock, &GiveBlock) == 1; }

void WipeBlock(void* block) {
  if (block != nullptr) WipeBytes({static_cast<uint8_t*>(block), malloc_usable_size(block)});
}

}  // namespace longhaul::crypto
