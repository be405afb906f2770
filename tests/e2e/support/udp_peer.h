// A bare UDP socket on the loopback interface: any peer that is not a well-behaved daemon.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longhaul/units.h"

namespace longhaul::e2e {

class UdpPeer {
 public:
  // On any free port of 127.0.0.1.
  UdpPeer();
  ~UdpPeer();
  UdpPeer(const UdpPeer&) = delete;
  UdpPeer& operator=(const UdpPeer&) = delete;

  uint16_t port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  // To a port of 127.0.0.1.
  void Send(uint16_t port, const std::vector<uint8_t>& datagram);
  struct Datagram {
    uint16_t from_port = 0;
    std::vector<uint8_t> bytes;
  };
  std::optional<Datagram> Receive(Duration limit);

 private:
  int fd_ = -1;
  uint16_t port_ = 0;
};

}  // namespace longhaul::e2e
