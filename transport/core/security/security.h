// What an endpoint knows of keys: sessions of the handshake, protection of long packets, cookies, reset
// tokens. The seam between the sans-I/O core and TLS (transport/crypto/tls_security.h).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/address.h"
#include "base/allow_list.h"
#include "base/bytes.h"
#include "base/instant.h"
#include "longhaul/status.h"
#include "proto/packet_header.h"
#include "transport/core/security/packet_protection.h"

namespace longhaul::transport {

// The peer's identity, as the handshake has proved it.
struct PeerIdentity {
  enum class Kind : uint8_t { kNone, kPsk, kCertificate };
  Kind kind = Kind::kNone;
  std::string job;   // Of the key or the certificate; empty with kNone.
  std::string role;  // "server", "worker" or "tool"; only with kCertificate.
  std::string name;  // Only with kCertificate.
  // The ranks that a worker's certificate is for; none: it does not say.
  std::optional<RankRange> ranks = {};
  // What vouches for it, as 16 hexadecimal digits of a digest: the shared key, or the authority that the
  // chain of certificates ends with; empty with kNone.
  std::string trust = {};
  // Seconds since 1970, UTC: when the first certificate of the chain expires; 0: never.
  int64_t expires = 0;
  // The same peer, whatever its certificate's dates.
  bool operator==(const PeerIdentity& other) const {
    return kind == other.kind && job == other.job && role == other.role && name == other.name;
  }
};

// What a client shows to prove its address; opaque except to the server that made it.
inline constexpr size_t kCookieBytes = 16;
using Cookie = std::array<uint8_t, kCookieBytes>;

// One side of one handshake's cryptography. The peer's bytes go in in order, ours come out in order.
class HandshakeCrypto {
 public:
  virtual ~HandshakeCrypto() = default;

  // kPermissionDenied (wrong key, expired, other job ...) or kProtocolViolation ends the connection;
  // TakeData() may then have an alert for the peer, and every further call returns the same.
  virtual Status HandleData(ByteSpan bytes) = 0;
  // What to send next, empty when nothing. The client has its first flight at once.
  virtual std::vector<uint8_t> TakeData() = 0;
  // The peer is authenticated and the keys are known.
  virtual bool complete() const = 0;
  // Of a client that has heard nothing yet: another that says the same first, to try another server's answer.
  // Null when only holders of the key can answer, or there is none: then the first answer is as good as any.
  virtual std::unique_ptr<HandshakeCrypto> Again() const { return nullptr; }
  // REQUIRES: complete().
  virtual const PeerIdentity& peer() const = 0;
  // The keys of the short packets, bound to `context` (version, connection IDs, transport parameters of both
  // sides as sent): sides that differ in it cannot read each other. REQUIRES: complete().
  virtual std::unique_ptr<PacketProtection> MakeProtection(ByteSpan context) = 0;
};

// An endpoint's; must outlive it and its sessions.
class Security {
 public:
  virtual ~Security() = default;

  virtual std::unique_ptr<HandshakeCrypto> NewSession(bool is_client) = 0;
  // Of INIT, ACCEPT and RETRY (REFUSE keeps the integrity tag). `header` is all in front of the body, with
  // the cookie. Every holder of the key seals under it, and a restarted or stateless sender cannot know which
  // numbers it has used: it must stand numbers that come twice (deterministic authenticated encryption, SIV:
  // equal packets look equal, and nothing else is lost; transport/crypto/long_protection.h).
  virtual PacketProtection& long_protection() = 0;
  // nullopt: this kind of security has no cookies.
  virtual std::optional<Cookie> MakeCookie(Instant now, const Address& from, wire::ConnectionId client) = 0;
  virtual bool CheckCookie(Instant now, const Address& from, wire::ConnectionId client, ByteSpan cookie) = 0;
  // Stable across restarts with the same key and unique per server: a client treats a matching token as proof
  // of a reset.
  virtual std::array<uint8_t, 16> ResetToken(wire::ConnectionId local) = 0;
  // A number that no observer of the others can predict: connection IDs, challenges, filler,
  // salts. `seeded` is the endpoint's own chance, which can be computed from a few of its outputs: security
  // without keys (simulations) gives it back, so that its runs can be repeated. Callers draw the same amount
  // of it either way, so everything else stays repeatable with keys too.
  virtual uint64_t Unpredictable(uint64_t seeded) = 0;
  // Whether an attacker on the path can neither read nor forge.
  virtual bool IsSecure() const = 0;
};

}  // namespace longhaul::transport
