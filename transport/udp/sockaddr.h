// Addresses between longhaul's value type and the kernel's structures.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include "base/address.h"

namespace longhaul::udp {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

// For a socket of `family` (AF_INET or AF_INET6; the latter takes IPv4 addresses in their mapped form). An
// IPv6 address has no form in AF_INET: size is 0 then.
SocketAddress ToSocketAddress(const Address& address, int family);
// IPv4 becomes IPv4-mapped. Another family gives the all-zero address.
Address FromSocketAddress(const SocketAddress& address);

// 0.0.0.0 or ::, "every interface".
bool IsWildcard(const Address& address);

}  // namespace longhaul::udp
