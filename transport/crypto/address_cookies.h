// Stateless proof that a client receives at the address it sends from (as RFC 9000 §8.1.2 and IKEv2's COOKIE,
// RFC 7296 §2.6): made from the address alone, checked without having kept anything.
//
//   cookie = low 8 bits of the period | first 15 bytes of SipHash-128(key of the period, message)
//   message = address | port | connection ID | period
//
// A period is 30 s; the present and the previous one are valid, so a cookie lives for 30 to 60 s.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <utility>

#include "base/address.h"
#include "base/instant.h"
#include "transport/core/security/security.h"
#include "transport/crypto/key_derivation.h"
#include "transport/crypto/secret_bytes.h"

namespace longhaul::crypto {

inline constexpr Duration kCookiePeriod = std::chrono::seconds(30);

// Allocates only when a period's key is made. Not thread-safe.
class AddressCookies {
 public:
  // Keys of all periods come of `seed`.
  explicit AddressCookies(SecretBytes seed) : seed_(std::move(seed)) {}

  transport::Cookie Make(Instant now, const Address& from, wire::ConnectionId client);
  bool Check(Instant now, const Address& from, wire::ConnectionId client, ByteSpan cookie);

 private:
  struct PeriodKey {
    int64_t period = -1;
    SecretBytes key;
  };

  transport::Cookie MakeOf(int64_t period, const Address& from, wire::ConnectionId client);
  ByteSpan KeyOf(int64_t period);

  SecretBytes seed_;
  SipHash hash_;
  std::array<PeriodKey, 2> keys_;  // by period mod 2
};

}  // namespace longhaul::crypto
