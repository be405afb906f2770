// Message authentication codes under one key, by OpenSSL's EVP_MAC.
#pragma once

#include <array>

#include "base/bytes.h"
#include "transport/crypto/openssl_ptr.h"

namespace longhaul::crypto {

// A context that keeps its key; EVP_MAC_init without a key starts the next message.
MacContext NewHmacSha256(ByteSpan key);

// SipHash-2-4 with 128 bits of output (Aumasson and Bernstein): short messages in little time.
class SipHash {
 public:
  SipHash();
  // REQUIRES: key.size() == 16. Does not allocate.
  std::array<uint8_t, 16> operator()(ByteSpan key, ByteSpan message);

 private:
  MacContext context_;
};

}  // namespace longhaul::crypto
