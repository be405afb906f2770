// What a key file holds. Two kinds, distinguished by their first line:
//
//   a pre-shared key of a job            a certificate's bundle, PEM
//     longhaul-psk-v1                      the own private key
//     job = NAME                           the own certificate, then any between it and the CA
//     psk = 64 hexadecimal digits          the CA certificate(s), self-signed: trusted for the peer's
//
// Blank lines and lines that begin with # mean nothing in the first kind; PEM skips what is between its
// blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "longhaul/status.h"
#include "transport/core/security/security.h"
#include "transport/crypto/certificate.h"
#include "transport/crypto/openssl_ptr.h"
#include "transport/crypto/secret_bytes.h"

namespace longhaul::crypto {

inline constexpr size_t kPskBytes = 32;
inline constexpr size_t kMaxKeyFileBytes = 64 << 10;

struct PskKey {
  std::string job;
  SecretBytes psk;  // kPskBytes
};

struct CertificateKey {
  transport::PeerIdentity identity;  // of the own certificate
  PrivateKey private_key;
  PrivateKey client_key;                 // the same for TLS as a client (replayed_chance.h)
  std::vector<Certificate> chain;        // the own certificate first
  std::vector<Certificate> authorities;  // at least one
};

using Credentials = std::variant<PskKey, CertificateKey>;

// kInvalidArgument names the mistake, never the content of the file.
Result<Credentials> ParseKeyFile(std::string_view text);

// PeerIdentity::trust of all peers that these credentials accept: of the shared key, or of each authority.
std::vector<std::string> TrustsOf(const Credentials& credentials);

// The file of a pre-shared key; ParseKeyFile reads it back. REQUIRES: what CheckKeyName and kPskBytes ask
// for.
SecretBytes PrintPskKey(const PskKey& key);

}  // namespace longhaul::crypto
