// Makes keys and certificates. Chance is OpenSSL's generator; time is an argument.
#pragma once

#include <cstdint>
#include <string_view>

#include "longhaul/status.h"
#include "transport/crypto/certificate.h"
#include "transport/crypto/secret_bytes.h"

namespace longhaul::crypto {

// Seconds since 1970, UTC; both ends included.
struct Validity {
  int64_t not_before = 0;
  int64_t not_after = 0;
};

// The text of a new pre-shared key's file.
Result<SecretBytes> NewPsk(std::string_view job);

// A certification authority: Ed25519 private key and self-signed certificate, PEM. To be kept where
// certificates are issued, and nowhere else.
Result<SecretBytes> NewCa(std::string_view name, const Validity& validity);

// When the certificate of a CA as from NewCa is valid. kInvalidArgument when it is none.
Result<Validity> CaValidity(std::string_view ca_bundle);

// A key file for one server, worker or tool: new Ed25519 private key, its certificate, the CA's certificate.
// `ca_bundle` as from NewCa; keys of other kinds serve too. That the CA is valid for as long is the caller's
// responsibility (CaValidity): peers check both. ranks: of a worker; none: the certificate does not say.
Result<SecretBytes> IssueCertificate(std::string_view ca_bundle, std::string_view job, Role role,
                                     std::string_view name, const Validity& validity,
                                     const std::optional<RankRange>& ranks = {});

}  // namespace longhaul::crypto
