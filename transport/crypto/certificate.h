// Certificates (X.509, RFC 5280) out of PEM, and whose they are.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "longhaul/status.h"
#include "transport/core/security.h"
#include "transport/crypto/openssl_ptr.h"

namespace longhaul::crypto {

inline constexpr size_t kMaxCertificates = 16;

// All certificates of a PEM text in their order, none when it has none; what else is in it is skipped.
// kInvalidArgument when one is damaged or there are more than kMaxCertificates.
Result<std::vector<Certificate>> ParseCertificates(std::string_view pem);

// The identity of a certificate: its only URI of ours among its subject alternative names. kPermissionDenied
// says what is missing.
Result<transport::PeerIdentity> IdentityOf(const x509_st& certificate);

}  // namespace longhaul::crypto
