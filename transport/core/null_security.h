// No security: a handshake without a byte, every packet under the integrity tag, no cookies. What --insecure
// means, and what simulations use.
#pragma once

#include <memory>
#include <optional>

#include "transport/core/integrity_tag.h"
#include "transport/core/security.h"

namespace longhaul::transport {

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
