// Protection of long packets (INIT, ACCEPT, RETRY), before there are keys of a connection: under a key made
// of the pre-shared key, so that an outsider cannot make a server do a key exchange, or under a constant that
// is public (as QUIC's Initial, RFC 9001 §5.2), which only detects damage.
//
// Every holder of the key seals with it, stateless servers and restarted ones too, so numbers do repeat.
// AES-GCM would lose its authentication key by that; deterministic authenticated encryption has no nonce to
// repeat (Rogaway and Shrimpton, "Deterministic Authenticated-Encryption", construction SIV; RFC 5297 is one
// of its forms):
//
//   tag  = first 16 bytes of HMAC-SHA-256(K1, number 64 | path 8 | length of header 32 | header | body)
//   body = body xor AES-128-CTR(K2, first counter block = tag)
//
// Two packets that are equal in all of it look equal, and a repeated number reveals no more.
#pragma once

#include <array>

#include "transport/core/security/packet_protection.h"
#include "transport/crypto/openssl_ptr.h"
#include "transport/crypto/secret_bytes.h"

namespace longhaul::crypto {

// Not thread-safe.
class LongProtection : public transport::PacketProtection {
 public:
  // K1 and K2 come of `key` by HKDF labels. `secret`: whether it is unknown to outsiders.
  LongProtection(ByteSpan key, bool secret);

  // REQUIRES: tag.size() == wire::kTagBytes.
  void Seal(wire::PacketNumber number, uint8_t path, ByteSpan header, MutableByteSpan body,
            MutableByteSpan tag) override;
  bool Open(wire::PacketNumber number, uint8_t path, ByteSpan header, MutableByteSpan body,
            ByteSpan tag) override;
  bool IsSecure() const override { return secret_; }

 private:
  using Tag = std::array<uint8_t, wire::kTagBytes>;

  Tag Authenticate(wire::PacketNumber number, uint8_t path, ByteSpan header, ByteSpan body);
  void Encrypt(ByteSpan tag, MutableByteSpan body);

  MacContext mac_;
  CipherContext cipher_;
  bool secret_;
};

// The public key of LongProtection.
ByteSpan PublicLongKey();

}  // namespace longhaul::crypto
