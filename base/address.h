// A network address as a value: the core compares and hashes it, only transport/udp turns it into a sockaddr.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace longhaul {

// IPv6, or IPv4 as an IPv4-mapped IPv6 address (::ffff:a.b.c.d, RFC 4291 §2.5.5.2).
struct Address {
  std::array<uint8_t, 16> ip{};
  uint16_t port = 0;

  auto operator<=>(const Address&) const = default;
  static Address V4(uint8_t a, uint8_t b, uint8_t c, uint8_t d, uint16_t port);
  bool IsV4() const;
  // 127.0.0.0/8 or ::1: only this machine can be there.
  bool IsLoopback() const;
  // "127.0.0.1:7700" or "[::1]:7700".
  std::string ToString() const;
};

}  // namespace longhaul

template <>
struct std::hash<longhaul::Address> {
  size_t operator()(const longhaul::Address& a) const noexcept {
    uint64_t h = 1469598103934665603ull;  // FNV-1a
    for (uint8_t byte : a.ip) h = (h ^ byte) * 1099511628211ull;
    return static_cast<size_t>((h ^ a.port) * 1099511628211ull);
  }
};
