#include "transport/crypto/address_cookies.h"

#include <algorithm>

#include "transport/crypto/key_derivation.h"

namespace longhaul::crypto {
namespace {

int64_t PeriodOf(Instant now) { return std::max<int64_t>(now.nanoseconds(), 0) / kCookiePeriod.count(); }

}  // namespace

transport::Cookie AddressCookies::Make(Instant now, const Address& from, wire::ConnectionId client) {
  return MakeOf(PeriodOf(now), from, client);
}

bool AddressCookies::Check(Instant now, const Address& from, wire::ConnectionId client, ByteSpan cookie) {
  if (cookie.size() != transport::kCookieBytes) return false;
  int64_t period = PeriodOf(now);
  if (cookie[0] != static_cast<uint8_t>(period)) --period;
  if (period < 0 || cookie[0] != static_cast<uint8_t>(period)) return false;
  return SecretsEqual(MakeOf(period, from, client), cookie);
}

transport::Cookie AddressCookies::MakeOf(int64_t period, const Address& from, wire::ConnectionId client) {
  std::array<uint8_t, 16 + 2 + 8 + 8> message{};
  ByteWriter out(message);
  out.Bytes(from.ip);
  out.U16(from.port);
  out.U64(client.value);
  out.U64(static_cast<uint64_t>(period));
  const std::array<uint8_t, 16> hash = hash_(KeyOf(period), message);
  transport::Cookie cookie{};
  cookie[0] = static_cast<uint8_t>(period);
  std::copy_n(hash.begin(), cookie.size() - 1, cookie.begin() + 1);
  return cookie;
}

ByteSpan AddressCookies::KeyOf(int64_t period) {
  PeriodKey& slot = keys_[static_cast<size_t>(period & 1)];
  if (slot.period != period) {
    std::array<uint8_t, 8> context{};
    ByteWriter(context).U64(static_cast<uint64_t>(period));
    slot = {period, HkdfExpandLabel(Hash::kSha256, seed_.span(), "cookie", context, 16)};
  }
  return slot.key.span();
}

}  // namespace longhaul::crypto
