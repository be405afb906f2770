// A PacketProtection that only detects damage: no secrecy, and a forger of packets can make the tag
// too. For simulation, tests and networks trusted by other means; daemons are loud about it.
//
// The 16 bytes of the tag, big-endian:
//
//   CRC-32C over packet number, path, header and body | CRC-32C over packet number, path and header |
//   length of the body 32 | "LHIT"
#pragma once

#include <memory>
#include <optional>

#include "transport/core/security/packet_protection.h"
#include "transport/core/security/security.h"

namespace longhaul::transport {

class IntegrityTag : public PacketProtection {
 public:
  // The body stays as it is. REQUIRES: tag.size() == wire::kTagBytes.
  void Seal(wire::PacketNumber number, uint8_t path, ByteSpan header, MutableByteSpan body,
            MutableByteSpan tag) override;
  // False also for a tag of the wrong size.
  bool Open(wire::PacketNumber number, uint8_t path, ByteSpan header, MutableByteSpan body,
            ByteSpan tag) override;
  bool IsSecure() const override { return false; }
};

// No security: a handshake without a byte, every packet under the integrity tag, no cookies. What --insecure
// means, and what simulations use.
class NullSecurity final : public Security {
 public:
  // Sessions are complete at once and know nothing of the peer; data is refused.
  std::unique_ptr<HandshakeCrypto> NewSession(bool is_client) override;
  PacketProtection& long_protection() override { return tag_; }
  std::optional<Cookie> MakeCookie(Instant now, const Address& from, wire::ConnectionId client) override;
  bool CheckCookie(Instant now, const Address& from, wire::ConnectionId client, ByteSpan cookie) override;
  std::array<uint8_t, 16> ResetToken(wire::ConnectionId local) override;
  uint64_t Unpredictable(uint64_t seeded) override { return seeded; }
  bool IsSecure() const override { return false; }

 private:
  IntegrityTag tag_;
};

}  // namespace longhaul::transport
