#include "transport/crypto/tls_security.h"

#include <openssl/rand.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "transport/crypto/address_cookies.h"
#include "transport/crypto/certificate.h"
#include "transport/crypto/key_derivation.h"
#include "transport/crypto/long_protection.h"
#include "transport/crypto/tls_session.h"
#include "transport/crypto/tls_settings.h"

namespace longhaul::crypto {
namespace {

SecretBytes RandomSeed() {
  SecretBytes seed(32);
  LH_CHECK(RAND_priv_bytes(seed.span().data(), static_cast<int>(seed.size())) == 1);
  return seed;
}

// What an endpoint's lasting keys come of: the same after a restart.
SecretBytes RootOf(const TlsSettings& settings) {
  if (settings.psk() != nullptr) return settings.root;
  constexpr std::string_view kSalt = "longhaul v1 root";
  const ByteSpan salt(reinterpret_cast<const uint8_t*>(kSalt.data()), kSalt.size());
  const SecretBytes key = LastingSecret(settings.certificate()->private_key);
  return HkdfExtract(Hash::kSha256, salt, key.span());
}

LongProtection MakeLongProtection(const TlsSettings& settings, const SecretBytes& root) {
  if (settings.psk() == nullptr) return LongProtection(PublicLongKey(), false);
  return LongProtection(HkdfExpandLabel(Hash::kSha256, root.span(), "long packets", {}, 32).span(), true);
}

// A key of this server alone, though others may have the same root.
SecretBytes MakeResetKey(const TlsSettings& settings, const SecretBytes& root) {
  const SecretBytes all = HkdfExpandLabel(Hash::kSha256, root.span(), "reset tokens", {}, 32);
  const std::string who = "server " + settings.options.server_name;
  const ByteSpan name(reinterpret_cast<const uint8_t*>(who.data()), who.size());
  return HkdfExtract(Hash::kSha256, all.span(), name);  // HMAC-SHA-256(all, name)
}

}  // namespace

struct TlsSecurity::Impl {
  Impl(std::shared_ptr<const TlsSettings> s, const SecretBytes& root)
      : settings(std::move(s)),
        long_packets(MakeLongProtection(*settings, root)),
        reset_key(MakeResetKey(*settings, root)),
        cookies(RandomSeed()) {}

  std::shared_ptr<const TlsSettings> settings;
  LongProtection long_packets;
  SecretBytes reset_key;
  AddressCookies cookies;
};

Result<std::unique_ptr<TlsSecurity>> TlsSecurity::Create(Credentials credentials, TlsOptions options) {
  auto settings = MakeTlsSettings(std::move(credentials), std::move(options));
  if (!settings.ok()) return settings.status();
  const SecretBytes root = RootOf(**settings);
  return std::unique_ptr<TlsSecurity>(
      new TlsSecurity(std::make_unique<Impl>(std::move(settings).value(), root)));
}

TlsSecurity::TlsSecurity(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TlsSecurity::~TlsSecurity() = default;

std::unique_ptr<transport::HandshakeCrypto> TlsSecurity::NewSession(bool is_client) {
  return std::make_unique<TlsSession>(impl_->settings, is_client);
}

transport::PacketProtection& TlsSecurity::long_protection() { return impl_->long_packets; }

std::optional<transport::Cookie> TlsSecurity::MakeCookie(Instant now, const Address& from,
                                                         wire::ConnectionId client) {
  return impl_->cookies.Make(now, from, client);
}

bool TlsSecurity::CheckCookie(Instant now, const Address& from, wire::ConnectionId client, ByteSpan cookie) {
  return impl_->cookies.Check(now, from, client, cookie);
}

std::array<uint8_t, 16> TlsSecurity::ResetToken(wire::ConnectionId local) {
  std::array<uint8_t, 8> context{};
  ByteWriter(context).U64(local.value);
  const SecretBytes token = HkdfExpandLabel(Hash::kSha256, impl_->reset_key.span(), "token", context, 16);
  std::array<uint8_t, 16> out{};
  std::copy_n(token.span().begin(), out.size(), out.begin());
  return out;
}

uint64_t TlsSecurity::Unpredictable(uint64_t) {
  uint64_t value = 0;
  LH_CHECK(RAND_bytes(reinterpret_cast<uint8_t*>(&value), sizeof value) == 1);
  return value;
}

}  // namespace longhaul::crypto
