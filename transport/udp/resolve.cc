#include "transport/udp/resolve.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>

namespace longhaul::udp {
namespace {

Status Bad(std::string_view text, const std::string& why) {
  return Status(StatusCode::kInvalidArgument, "'" + std::string(text) + "' is not HOST:PORT: " + why);
}

Result<uint16_t> ParsePort(std::string_view text, std::string_view port) {
  if (port.empty()) return Bad(text, "the port is missing");
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), value);
  if (error == std::errc::invalid_argument || end != port.data() + port.size()) {
    return Bad(text, "the port is not a number");
  }
  if (error != std::errc() || value > 65535) return Bad(text, "the port is not in 0..65535");
  return static_cast<uint16_t>(value);
}

struct FreeAddressInfo {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using AddressInfoList = std::unique_ptr<addrinfo, FreeAddressInfo>;

Status LookupError(const std::string& host, int error) {
  const bool again = error == EAI_AGAIN || error == EAI_SYSTEM || error == EAI_MEMORY;
  std::string why = error == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(error);
  return Status(again ? StatusCode::kUnavailable : StatusCode::kNotFound,
                "host '" + host + "' cannot be resolved: " + why);
}

Address FromAddressInfo(const addrinfo& info) {
  SocketAddress raw;
  std::memcpy(&raw.storage, info.ai_addr, info.ai_addrlen);
  return FromSocketAddress(raw);
}

Result<Address> Lookup(const HostPort& target) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* raw = nullptr;
  const int error = ::getaddrinfo(target.host.c_str(), nullptr, &hints, &raw);
  const AddressInfoList list(raw);
  if (error != 0 || !list) return LookupError(target.host, error);
  Address chosen = FromAddressInfo(*list);
  for (const addrinfo* info = list.get(); info != nullptr; info = info->ai_next) {
    if (info->ai_family == AF_INET) {
      chosen = FromAddressInfo(*info);
      break;
    }
  }
  chosen.port = target.port;
  return chosen;
}

}  // namespace

Result<HostPort> ParseHostPort(std::string_view text) {
  HostPort out;
  std::string_view port;
  if (text.starts_with('[')) {
    const size_t close = text.find(']');
    if (close == std::string_view::npos) return Bad(text, "the ']' is missing");
    out.host = text.substr(1, close - 1);
    if (out.host.find(':') == std::string::npos) return Bad(text, "only IPv6 addresses stand in brackets");
    port = text.substr(close + 1);
    if (!port.starts_with(':')) return Bad(text, "the port is missing");
    port.remove_prefix(1);
  } else {
    const size_t colon = text.rfind(':');
    if (colon == std::string_view::npos) return Bad(text, "the port is missing");
    out.host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (out.host.find(':') != std::string::npos) {
      return Bad(text, "write an IPv6 address in brackets, as in [::1]:7700");
    }
  }
  if (out.host.empty()) return Bad(text, "the host is missing; 0.0.0.0 or [::] mean every interface");
  if (out.host.find('%') != std::string::npos)
    return Bad(text, "addresses with a zone (%) are not supported");
  if (out.host.find('\0') != std::string::npos) return Bad(text, "the host contains a zero byte");
  Result<uint16_t> number = ParsePort(text, port);
  if (!number) return number.status();
  out.port = *number;
  return out;
}

Result<Address> ResolveListen(std::string_view host_port) {
  Result<HostPort> target = ParseHostPort(host_port);
  if (!target) return target.status();
  return Lookup(*target);
}

Result<Address> ResolvePeer(std::string_view host_port) {
  Result<HostPort> target = ParseHostPort(host_port);
  if (!target) return target.status();
  if (target->port == 0) return Bad(host_port, "a peer's port cannot be 0");
  return Lookup(*target);
}

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

}  // namespace longhaul::udp
