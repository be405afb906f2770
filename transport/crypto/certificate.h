// Private keys and certificates (X.509, RFC 5280) between PEM and OpenSSL, and the name in a certificate: the
// URI longhaul://JOB/ROLE/NAME as its subject alternative name.
//
// OpenSSL's own readers and printers leave copies of a key in the heap, so Ed25519, which is what longhaul
// makes, goes by a way that wipes them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "longhaul/status.h"
#include "transport/core/security/security.h"
#include "transport/crypto/openssl_ptr.h"
#include "transport/crypto/secret_bytes.h"

namespace longhaul::crypto {

inline constexpr size_t kEd25519Bytes = 32;

// An Ed25519 key (RFC 8032) of its 32 bytes, which may be any; nullptr when OpenSSL cannot. library: of which
// library context of OpenSSL; null is its default one.
PrivateKey MakeEd25519(ByteSpan raw, ossl_lib_ctx_st* library = nullptr);
// The same as PKCS #8 in PEM.
SecretBytes PrintEd25519(ByteSpan raw);
// The first private key of a PEM text, of any kind that OpenSSL reads; nullptr when there is none, or an
// encrypted one.
PrivateKey ParsePrivateKey(std::string_view pem, ossl_lib_ctx_st* library = nullptr);
// Bytes derived from the key, secret as it is and the same at every call.
SecretBytes LastingSecret(const PrivateKey& key);

// Certificates (X.509, RFC 5280) out of PEM, and whose they are.
inline constexpr size_t kMaxCertificates = 16;

// All certificates of a PEM text in their order, none when it has none; what else is in it is skipped.
// kInvalidArgument when one is damaged or there are more than kMaxCertificates.
Result<std::vector<Certificate>> ParseCertificates(std::string_view pem);

// The identity of a certificate: its only URI of ours among its subject alternative names, and when it
// expires. kPermissionDenied says what is missing.
Result<transport::PeerIdentity> IdentityOf(const x509_st& certificate);
// When the certificate expires, in seconds since 1970; 0: it does not say so in a way that can be read.
int64_t ExpiryOf(const x509_st& certificate);
// PeerIdentity::trust of what this authority has issued: of its key, so that a renewed certificate of it is
// the same authority.
std::string TrustOf(const x509_st& authority);
// The same of any digest of at least 8 bytes.
std::string TrustText(ByteSpan digest);

// The name in a certificate: the URI longhaul://JOB/ROLE/NAME as its subject alternative name, or
// longhaul://JOB/worker/NAME?ranks=1-3.
enum class Role : uint8_t { kServer, kWorker, kTool };
// "server", "worker" or "tool".
std::string_view RoleName(Role role);
std::optional<Role> ParseRole(std::string_view name);

// Jobs and names that a key can be for: 1..64 of A-Z a-z 0-9 . _ -. kInvalidArgument calls the value by
// `what`.
Status CheckKeyName(std::string_view what, std::string_view value);

std::string IdentityUri(std::string_view job, Role role, std::string_view name,
                        const std::optional<RankRange>& ranks = {});
// nullopt when it is not exactly such a URI.
std::optional<transport::PeerIdentity> ParseIdentityUri(std::string_view uri);

}  // namespace longhaul::crypto
