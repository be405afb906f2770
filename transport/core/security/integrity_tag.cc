#include "transport/core/security/integrity_tag.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/random.h"

namespace longhaul::transport {
namespace {

constexpr uint32_t kMark = 0x4c484954;  // "LHIT"

using Tag = std::array<uint8_t, wire::kTagBytes>;
static_assert(wire::kTagBytes == 4 * sizeof(uint32_t));

Tag MakeTag(wire::PacketNumber number, uint8_t path, ByteSpan header, ByteSpan body) {
  std::array<uint8_t, 9> prefix{};
  ByteWriter prefix_writer(prefix);
  prefix_writer.U64(number);
  prefix_writer.U8(path);
  const uint32_t head = Crc32c(header, Crc32c(prefix));
  Tag tag{};
  ByteWriter out(tag);
  out.U32(Crc32c(body, head));
  out.U32(head);
  out.U32(static_cast<uint32_t>(body.size()));
  out.U32(kMark);
  return tag;
}

class NullSession final : public HandshakeCrypto {
 public:
  Status HandleData(ByteSpan) override {
    return Status(StatusCode::kPermissionDenied, "the peer wants a secure connection, this side is insecure");
  }
  std::vector<uint8_t> TakeData() override { return {}; }
  bool complete() const override { return true; }
  const PeerIdentity& peer() const override { return peer_; }
  std::unique_ptr<PacketProtection> MakeProtection(ByteSpan) override {
    return std::make_unique<IntegrityTag>();
  }

 private:
  PeerIdentity peer_;
};

}  // namespace

void IntegrityTag::Seal(wire::PacketNumber number, uint8_t path, ByteSpan header, MutableByteSpan body,
                        MutableByteSpan tag) {
  LH_CHECK_OP(tag.size(), ==, wire::kTagBytes);
  const Tag made = MakeTag(number, path, header, body);
  std::copy(made.begin(), made.end(), tag.begin());
}

bool IntegrityTag::Open(wire::PacketNumber number, uint8_t path, ByteSpan header, MutableByteSpan body,
                        ByteSpan tag) {
  const Tag made = MakeTag(number, path, header, body);
  return std::equal(made.begin(), made.end(), tag.begin(), tag.end());
}

std::unique_ptr<HandshakeCrypto> NullSecurity::NewSession(bool) { return std::make_unique<NullSession>(); }

std::optional<Cookie> NullSecurity::MakeCookie(Instant, const Address&, wire::ConnectionId) {
  return std::nullopt;
}

bool NullSecurity::CheckCookie(Instant, const Address&, wire::ConnectionId, ByteSpan) { return false; }

// No secret: on the path all packets can be forged without a key, and off it the id has 64 bits to be
// guessed.
std::array<uint8_t, 16> NullSecurity::ResetToken(wire::ConnectionId local) {
  Random derived(local.value);
  std::array<uint8_t, 16> token{};
  ByteWriter out(token);
  out.U64(derived.Next());
  out.U64(derived.Next());
  return token;
}

}  // namespace longhaul::transport
