// The two ends' security for benchmarks of whole connections: what is measured with keys and without.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "transport/core/security/integrity_tag.h"
#include "transport/crypto/keygen.h"
#include "transport/crypto/tls_security.h"

namespace longhaul::bench {

// Values of a benchmark's argument.
enum SecurityKind : int64_t { kIntegrityTag, kAes128Gcm, kAes256Gcm, kChaCha20Poly1305 };

struct SecurityPair {
  std::string name;
  std::unique_ptr<transport::Security> client, server;
};

// One pre-shared key for both.
inline SecurityPair MakeSecurityPair(int64_t kind) {
  SecurityPair pair;
  if (kind == kIntegrityTag) {
    pair = {"no keys", std::make_unique<transport::NullSecurity>(),
            std::make_unique<transport::NullSecurity>()};
    return pair;
  }
  constexpr std::pair<const char*, crypto::AeadSuite> kSuites[] = {
      {"aes-128-gcm", crypto::AeadSuite::kAes128Gcm},
      {"aes-256-gcm", crypto::AeadSuite::kAes256Gcm},
      {"chacha20-poly1305", crypto::AeadSuite::kChaCha20Poly1305}};
  const auto& [name, suite] = kSuites[kind - 1];
  const crypto::SecretBytes file = crypto::NewPsk("bench").value();
  const auto make = [&file, suite = suite](crypto::Role role) {
    crypto::TlsOptions options;
    options.role = role;
    options.suites = {suite};
    options.wall_clock = [] { return int64_t{0}; };
    return crypto::TlsSecurity::Create(crypto::ParseKeyFile(file.text()).value(), std::move(options)).value();
  };
  return {name, make(crypto::Role::kWorker), make(crypto::Role::kServer)};
}

}  // namespace longhaul::bench
