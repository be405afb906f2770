// Private keys between PEM and OpenSSL. OpenSSL's own readers and printers leave copies of a key in the heap,
// so Ed25519, which is what longhaul makes, goes by a way that wipes them.
#pragma once

#include <cstddef>
#include <string_view>

#include "transport/crypto/openssl_ptr.h"
#include "transport/crypto/secret_bytes.h"

namespace longhaul::crypto {

inline constexpr size_t kEd25519Bytes = 32;

// An Ed25519 key (RFC 8032) of its 32 bytes, which may be any; nullptr when OpenSSL cannot.
PrivateKey MakeEd25519(ByteSpan raw);
// The same as PKCS #8 in PEM.
SecretBytes PrintEd25519(ByteSpan raw);
// The first private key of a PEM text, of any kind that OpenSSL reads; nullptr when there is none, or an
// encrypted one.
PrivateKey ParsePrivateKey(std::string_view pem);
// Bytes that only the key's holder knows, the same whenever they are asked for.
SecretBytes LastingSecret(const PrivateKey& key);

}  // namespace longhaul::crypto
