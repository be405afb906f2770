// Private keys between PEM and OpenSSL. OpenSSL's own readers and printers leave copies of a key in the heap,
// so Ed25519, which is what longhaul makes, goes by a way that wipes them.
#pragma once

#include <string_view>

#include "transport/crypto/openssl_ptr.h"
#include "transport/crypto/secret_bytes.h"

namespace longhaul::crypto {

// A new Ed25519 key; nullptr when OpenSSL cannot.
PrivateKey NewPrivateKey();
// The first private key of a PEM text, of any kind that OpenSSL reads; nullptr when there is none, or an
// encrypted one.
PrivateKey ParsePrivateKey(std::string_view pem);
// As PKCS #8 in PEM. REQUIRES: an Ed25519 key.
SecretBytes PrintPrivateKey(const PrivateKey& key);
// Bytes that only the key's holder knows, the same whenever they are asked for.
SecretBytes PrivateKeyBytes(const PrivateKey& key);

}  // namespace longhaul::crypto
