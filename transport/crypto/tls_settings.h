// What all sessions of an endpoint share: credentials, options, and OpenSSL's context made of them.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "longhaul/status.h"
#include "transport/crypto/imported_psk.h"
#include "transport/crypto/openssl_ptr.h"
#include "transport/crypto/tls_security.h"

namespace longhaul::crypto {

struct TlsSettings {
  Credentials credentials;
  TlsOptions options;
  std::vector<std::string> trusts;  // TrustsOf(credentials)
  // With a pre-shared key, of which nothing else is kept: for TLS by Hash, and for the rest.
  std::array<ImportedPsk, 2> imported;
  SecretBytes root;
  OpenSslPtr<ssl_ctx_st> client;  // with the suites that a client may offer
  OpenSslPtr<ssl_ctx_st> server;  // with all of them

  const PskKey* psk() const { return std::get_if<PskKey>(&credentials); }
  // Any host can answer a client that holds a certificate, so it tries several answers to one ClientHello
  // (transport/crypto/replayed_chance.h).
  bool Replays(bool is_client) const { return is_client && psk() == nullptr; }
  const CertificateKey* certificate() const { return std::get_if<CertificateKey>(&credentials); }
};

// As TlsSecurity::Create.
Result<std::shared_ptr<const TlsSettings>> MakeTlsSettings(Credentials credentials, TlsOptions options);

// The suite of a TLS 1.3 cipher by its two bytes (RFC 8446 appendix B.4), and back.
std::optional<AeadSuite> SuiteOfTls(uint16_t cipher);
uint16_t TlsOfSuite(AeadSuite suite);

}  // namespace longhaul::crypto
