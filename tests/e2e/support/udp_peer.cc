#include "tests/e2e/support/udp_peer.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>

namespace longhaul::e2e {
namespace {

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

}  // namespace

UdpPeer::UdpPeer() : fd_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(fd_, reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
  port_ = ntohs(address.sin_port);
}

UdpPeer::~UdpPeer() { ::close(fd_); }

void UdpPeer::Send(uint16_t port, const std::vector<uint8_t>& datagram) {
  const sockaddr_in to = Loopback(port);
  const ssize_t sent =
      ::sendto(fd_, datagram.data(), datagram.size(), 0, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  EXPECT_EQ(sent, static_cast<ssize_t>(datagram.size()));
}

std::optional<UdpPeer::Datagram> UdpPeer::Receive(Duration limit) {
  pollfd ready{fd_, POLLIN, 0};
  const auto wait_ms = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
  if (::poll(&ready, 1, static_cast<int>(wait_ms)) != 1) return std::nullopt;
  Datagram datagram;
  datagram.bytes.resize(65536);
  sockaddr_in from{};
  socklen_t size = sizeof from;
  const ssize_t got = ::recvfrom(fd_, datagram.bytes.data(), datagram.bytes.size(), 0,
                                 reinterpret_cast<sockaddr*>(&from), &size);
  if (got < 0) return std::nullopt;
  datagram.bytes.resize(static_cast<size_t>(got));
  datagram.from_port = ntohs(from.sin_port);
  return datagram;
}

}  // namespace longhaul::e2e
