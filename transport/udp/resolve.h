// HOST:PORT as people type it.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/address.h"
#include "longhaul/status.h"

namespace longhaul::udp {

struct HostPort {
  std::string host;  // A name, an IPv4 address, or an IPv6 address without its brackets.
  uint16_t port = 0;
  bool operator==(const HostPort&) const = default;
};

// Takes "host:port", "10.0.0.1:7700" or "[::1]:7700" apart; looks nothing up. Errors: kInvalidArgument with
// the text and what is wrong with it.
Result<HostPort> ParseHostPort(std::string_view text);

// The address of a peer. A name may ask the network and block for seconds. Of several addresses the first
// IPv4 one is taken: a server on 0.0.0.0 or :: is reached by it, and UDP has no refused connection that would
// tell us quickly to try the next one. Errors: kInvalidArgument (text, port 0), kNotFound (no such host),
// kUnavailable (no answer from name service; worth another try).
Result<Address> ResolvePeer(std::string_view host_port);

// The address to listen on: as ResolvePeer, but port 0 means "any free port".
Result<Address> ResolveListen(std::string_view host_port);

// Addresses between longhaul's value type and the kernel's structures.
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

}  // namespace longhaul::udp
