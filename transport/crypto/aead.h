// Authenticated encryption with associated data (RFC 5116) under one key, in place, packet after packet.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>

#include "base/bytes.h"
#include "transport/crypto/key_derivation.h"

namespace longhaul::crypto {

// As negotiated by TLS: its cipher suite is the packets' AEAD.
enum class AeadSuite : uint8_t { kAes128Gcm, kAes256Gcm, kChaCha20Poly1305 };

inline constexpr size_t kAeadNonceBytes = 12;
inline constexpr size_t kAeadTagBytes = 16;
using AeadNonce = std::array<uint8_t, kAeadNonceBytes>;

constexpr size_t AeadKeyBytes(AeadSuite suite) { return suite == AeadSuite::kAes128Gcm ? 16 : 32; }
// The hash that TLS 1.3 pairs with the suite.
constexpr Hash AeadHash(AeadSuite suite) {
  return suite == AeadSuite::kAes256Gcm ? Hash::kSha384 : Hash::kSha256;
}
// For example "AES-128-GCM".
std::string_view AeadName(AeadSuite suite);

// How far a key may be used (RFC 9001 §6.6 and its appendix B).
struct AeadLimits {
  // Blocks of 16 bytes sealed with one key. GCM: 2^28 packets of 2^11 bytes or 2^23 of 2^16 are both 2^35
  // blocks, 512 GiB; ChaCha20-Poly1305 outlasts packet numbers.
  uint64_t sealed_blocks = std::numeric_limits<uint64_t>::max();
  // Packets of a connection, under all of its keys, that did not open.
  uint64_t forged_packets = std::numeric_limits<uint64_t>::max();
};
constexpr AeadLimits LimitsOf(AeadSuite suite) {
  if (suite == AeadSuite::kChaCha20Poly1305) return {.forged_packets = uint64_t{1} << 36};
  return {.sealed_blocks = uint64_t{1} << 35, .forged_packets = uint64_t{1} << 52};
}

// One key, one direction. Neither call allocates. Not thread-safe.
class Aead {
 public:
  enum class Use { kSeal, kOpen };
  virtual ~Aead() = default;

  // REQUIRES: made for kSeal; `nonce` was never used with this key; tag.size() == kAeadTagBytes.
  virtual void Seal(const AeadNonce& nonce, ByteSpan header, MutableByteSpan body, MutableByteSpan tag) = 0;
  // False when the tag does not fit: `body` is garbage then. REQUIRES: made for kOpen.
  virtual bool Open(const AeadNonce& nonce, ByteSpan header, MutableByteSpan body, ByteSpan tag) = 0;
};

// By OpenSSL's EVP. REQUIRES: key.size() == AeadKeyBytes(suite).
std::unique_ptr<Aead> MakeEvpAead(AeadSuite suite, Aead::Use use, ByteSpan key);
// The fastest in this build on this processor.
std::unique_ptr<Aead> MakeAead(AeadSuite suite, Aead::Use use, ByteSpan key);

}  // namespace longhaul::crypto
