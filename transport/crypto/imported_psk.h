// What is made of a job's pre-shared key (RFC 9258): one secret for TLS with each hash, and one for
// everything else. The key itself has no other use.
//
//   epskx = HKDF-Extract(SHA-256, salt 0, key)
//     ├─ "tls13 derived psk", SHA-256(ImportedIdentity) ──> TLS's key for one hash (RFC 9258 §5.1)
//     └─ "longhaul root"                                ──> long packets, reset tokens (tls_security.h)
//
// OpenSSL has no importer, so in the binder's derivation TLS still says "ext binder" instead of "imp binder".
// The label tells imported keys from others; here all of them are imported.
#pragma once

#include <cstdint>
#include <vector>

#include "transport/crypto/credentials.h"
#include "transport/crypto/key_derivation.h"

namespace longhaul::crypto {

struct ImportedPsk {
  // ImportedIdentity: the job | "longhaul v1 tls" | TLS 1.3 | HKDF with the hash. Travels in clear.
  std::vector<uint8_t> identity;
  SecretBytes key;  // HashBytes(target)
};

ImportedPsk ImportPsk(const PskKey& key, Hash target);
// 32 bytes.
SecretBytes PskRoot(const PskKey& key);

}  // namespace longhaul::crypto
