#include "transport/core/endpoint/admission.h"

namespace longhaul::transport {

Admission::Admission(const AdmissionOptions& options, uint64_t salt)
    : options_(options),
      salt_(salt),
      inits_(options.inits_without_cookie, options.inits_without_cookie),
      retries_(options.retries, options.retries),
      unopened_retries_(options.retries, options.retries),
      resets_(options.resets, options.resets),
      refusals_(options.refusals, options.refusals),
      unopened_refusals_(options.refusals, options.refusals),
      handshakes_(options.handshakes_per_address),
      failures_(options.failures_per_address),
      proved_failures_(options.failures_per_address) {}

uint64_t NetworkOf(const Address& address) {
  // Of an IPv4-mapped address the last eight bytes: ::ffff and the address. No IPv6 network begins like that.
  const size_t begin = address.IsV4() ? 8 : 0;
  uint64_t network = 0;
  for (size_t i = begin; i < begin + 8; ++i) network = network << 8 | address.ip[i];
  return network;
}

bool Admission::NeedsCookie(Instant now, size_t half_open) {
  const bool many = !inits_.Take(now);
  return options_.always_cookie || many || half_open > options_.max_half_open / 4;
}

size_t Admission::Index(const Address& address) const {
  // Mixed by splitmix64's finaliser: the salt keeps an attacker from choosing addresses that share a victim's
  // bucket.
  uint64_t h = salt_ ^ NetworkOf(address) * 0x9e3779b97f4a7c15ull;
  h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9ull;
  h = (h ^ h >> 27) * 0x94d049bb133111ebull;
  return static_cast<size_t>((h ^ h >> 31) % kAddressBuckets);
}

}  // namespace longhaul::transport
