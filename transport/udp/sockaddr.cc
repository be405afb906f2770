#include "transport/udp/sockaddr.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

namespace longhaul::udp {

SocketAddress ToSocketAddress(const Address& address, int family) {
  SocketAddress out;
  if (family == AF_INET) {
    if (!address.IsV4()) return out;
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(address.port);
    std::memcpy(&v4.sin_addr, address.ip.data() + 12, 4);
    std::memcpy(&out.storage, &v4, sizeof v4);
    out.size = sizeof v4;
    return out;
  }
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(address.port);
  std::memcpy(&v6.sin6_addr, address.ip.data(), 16);
  std::memcpy(&out.storage, &v6, sizeof v6);
  out.size = sizeof v6;
  return out;
}

Address FromSocketAddress(const SocketAddress& address) {
  Address out;
  if (address.storage.ss_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &address.storage, sizeof v4);
    const uint32_t ip = ntohl(v4.sin_addr.s_addr);
    return Address::V4(static_cast<uint8_t>(ip >> 24), static_cast<uint8_t>(ip >> 16),
                       static_cast<uint8_t>(ip >> 8), static_cast<uint8_t>(ip), ntohs(v4.sin_port));
  }
  if (address.storage.ss_family == AF_INET6) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, &address.storage, sizeof v6);
    std::memcpy(out.ip.data(), &v6.sin6_addr, 16);
    out.port = ntohs(v6.sin6_port);
  }
  return out;
}

bool IsWildcard(const Address& address) {
  const auto first = address.IsV4() ? address.ip.begin() + 12 : address.ip.begin();
  return std::all_of(first, address.ip.end(), [](uint8_t byte) { return byte == 0; });
}

}  // namespace longhaul::udp
