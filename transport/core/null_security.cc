#include "transport/core/null_security.h"

namespace longhaul::transport {
namespace {

class NullSession final : public HandshakeCrypto {
 public:
  Status HandleData(ByteSpan) override {
    return Status(StatusCode::kPermissionDenied, "the peer wants a secure connection, this side is insecure");
  }
  std::vector<uint8_t> TakeData() override { return {}; }
  bool complete() const override { return true; }
  const PeerIdentity& peer() const override { return nobody_; }
  std::unique_ptr<PacketProtection> MakeProtection(ByteSpan) override {
    return std::make_unique<IntegrityTag>();
  }

 private:
  PeerIdentity nobody_;
};

}  // namespace

std::unique_ptr<HandshakeCrypto> NullSecurity::NewSession(bool) { return std::make_unique<NullSession>(); }

std::optional<Cookie> NullSecurity::MakeCookie(Instant, const Address&, wire::ConnectionId) {
  return std::nullopt;
}

bool NullSecurity::CheckCookie(Instant, const Address&, wire::ConnectionId, ByteSpan) { return false; }

std::array<uint8_t, 16> NullSecurity::ResetToken(wire::ConnectionId) { return {}; }

}  // namespace longhaul::transport
