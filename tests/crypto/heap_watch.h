// Watches the heap of this test program, ours and OpenSSL's: counts allocations, and searches every block for
// secrets when it is given back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace longhaul::crypto {

// One at a time. From construction to destruction.
class HeapWatch {
 public:
  // What no block may hold when it is freed; at least 8 bytes, and not itself in a block that is freed
  // meanwhile.
  // openssl_is_wiped: its blocks go as after WipeOpenSslMemory.
  explicit HeapWatch(ByteSpan secret = {}, bool openssl_is_wiped = false);
  HeapWatch(const HeapWatch&) = delete;
  HeapWatch& operator=(const HeapWatch&) = delete;
  ~HeapWatch();

  // False when OpenSSL's allocations could not be hooked: then nothing below is worth anything.
  static bool SeesOpenSsl();
  uint64_t allocations() const;
  // More blocks than at the start.
  int64_t blocks() const;
  // Blocks that still held the secret when they were freed.
  uint64_t leaks() const;
};

}  // namespace longhaul::crypto
