// Security by TLS 1.3 (RFC 8446): an external pre-shared key with (EC)DHE, or certificates on both sides.
// What TLS agrees on becomes the connection's packet keys through its exporter; no data travels in TLS
// itself, and there are no tickets, no early data, no renegotiation.
//
//   exporter "EXPORTER-longhaul v1" over the context ──> master
//     ├─ "client" ──> secret of the client's packets, phase 0 ──> aead_protection.h
//     └─ "server" ──> secret of the server's packets, phase 0
//   pre-shared key (imported_psk.h), or the own private key ──> root
//     ├─ "long packets"                              ├─ "reset tokens" with the server's name
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "longhaul/status.h"
#include "transport/core/security/security.h"
#include "transport/crypto/aead.h"
#include "transport/crypto/certificate.h"
#include "transport/crypto/credentials.h"

namespace longhaul::crypto {

// Handshake bytes that one side takes; more is refused. A handshake with certificates is 3 KB.
inline constexpr size_t kMaxHandshakeBytes = 64 << 10;

struct TlsOptions {
  Role role = Role::kWorker;
  // The job of this side, and so of its peers. Empty: the key's.
  std::string job;
  // In order of the client's preference; the server takes any of its own. With a pre-shared key a client
  // offers only those whose hash is the first one's, since a key is bound to one hash (RFC 8446 §4.2.11).
  std::vector<AeadSuite> suites = {AeadSuite::kAes128Gcm, AeadSuite::kAes256Gcm,
                                   AeadSuite::kChaCha20Poly1305};
  // Seconds since 1970, UTC: what certificates' times are compared with. Required with certificates.
  std::function<int64_t()> wall_clock;
  // Server with certificates: the workers and tools that may connect. Empty: all of the CA's.
  AllowList allow;
  // Client with certificates: the server must have this name. Empty: any server of the job.
  std::string expected_server;
  // Server: what distinguishes it from the others with the same key, and stays the same when it is restarted.
  // Part of the key of its reset tokens: without it one server would answer a stray packet with a token of
  // another's connection. Not secret.
  std::string server_name;
};

// Not thread-safe: one endpoint's. Its sessions hold what they need and may outlive it.
class TlsSecurity : public transport::Security {
 public:
  // kInvalidArgument or kPermissionDenied when key and options do not fit: another job's key, another role's
  // certificate, no suite.
  static Result<std::unique_ptr<TlsSecurity>> Create(Credentials credentials, TlsOptions options);
  ~TlsSecurity() override;

  std::unique_ptr<transport::HandshakeCrypto> NewSession(bool is_client) override;
  transport::PacketProtection& long_protection() override;
  std::optional<transport::Cookie> MakeCookie(Instant now, const Address& from,
                                              wire::ConnectionId client) override;
  bool CheckCookie(Instant now, const Address& from, wire::ConnectionId client, ByteSpan cookie) override;
  std::array<uint8_t, 16> ResetToken(wire::ConnectionId local) override;
  // OpenSSL's generator, which the operating system seeds.
  uint64_t Unpredictable(uint64_t seeded) override;
  bool IsSecure() const override { return true; }

 private:
  struct Impl;
  explicit TlsSecurity(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace longhaul::crypto
