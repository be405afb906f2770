// Keys from keys: HKDF (RFC 5869) and its labelled form as in TLS 1.3 (RFC 8446 §7.1).
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "base/bytes.h"
#include "transport/crypto/openssl_ptr.h"
#include "transport/crypto/secret_bytes.h"

namespace longhaul::crypto {

enum class Hash { kSha256, kSha384 };
constexpr size_t HashBytes(Hash hash) { return hash == Hash::kSha256 ? 32 : 48; }

// HashBytes(hash) bytes. An empty salt is a salt of zeros.
SecretBytes HkdfExtract(Hash hash, ByteSpan salt, ByteSpan key_material);
// REQUIRES: bytes <= 255 * HashBytes(hash).
SecretBytes HkdfExpand(Hash hash, ByteSpan secret, ByteSpan info, size_t bytes);
// HkdfExpand with info = bytes 16 | length 8, prefix label | length 8, context. Our own prefix keeps our
// keys apart from TLS's. REQUIRES: prefix of at most 9 bytes, label of at most 32, context of at most 255.
inline constexpr std::string_view kOwnLabels = "longhaul ", kTlsLabels = "tls13 ";
SecretBytes HkdfExpandLabel(Hash hash, ByteSpan secret, std::string_view label, ByteSpan context,
                            size_t bytes, std::string_view prefix = kOwnLabels);

// Message authentication codes under one key, by OpenSSL's EVP_MAC.

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
