// Sockets on the loopback for tests, and patience with them.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <string>
#include <vector>

#include "transport/udp/clock.h"
#include "transport/udp/socket.h"

namespace longhaul::udp {

inline Address Loopback4() { return Address::V4(127, 0, 0, 1, 0); }
inline Address Loopback6() {
  Address address;
  address.ip[15] = 1;
  return address;
}

// Some containers have no IPv6, not even on the loopback.
inline bool HasIpv6() { return UdpSocket::Open(Loopback6()).ok(); }

inline UdpSocket OpenOrDie(const Address& bind = Loopback4(), const SocketOptions& options = {}) {
  Result<UdpSocket> socket = UdpSocket::Open(bind, options);
  if (!socket.ok()) ADD_FAILURE() << socket.status().ToString();
  return std::move(socket).value();
}

struct Arrived {
  Address from;
  std::vector<uint8_t> bytes;
  transport::ReceiveInfo info;
};

// What arrives until there are `count` datagrams or five seconds have passed.
inline std::vector<Arrived> ReceiveAll(UdpSocket& socket, size_t count) {
  std::vector<Arrived> out;
  const Instant deadline = Now() + std::chrono::seconds(5);
  while (out.size() < count && Now() < deadline) {
    pollfd wait{socket.fd(), POLLIN, 0};
    ::poll(&wait, 1, 100);
    for (const ReceivedDatagram& datagram : socket.Receive()) {
      out.push_back({datagram.from, {datagram.bytes.begin(), datagram.bytes.end()}, datagram.info});
    }
  }
  return out;
}

// `count` datagrams of `segment` bytes, the last of `last`; every byte depends on its place.
inline std::vector<uint8_t> Pattern(size_t count, size_t segment, size_t last) {
  std::vector<uint8_t> bytes((count - 1) * segment + last);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 31 + i / 251);
  return bytes;
}

inline std::vector<uint8_t> Concatenate(const std::vector<Arrived>& datagrams) {
  std::vector<uint8_t> out;
  for (const Arrived& datagram : datagrams)
    out.insert(out.end(), datagram.bytes.begin(), datagram.bytes.end());
  return out;
}

}  // namespace longhaul::udp
