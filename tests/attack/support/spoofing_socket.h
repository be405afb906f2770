// A socket that sends from any address of 127.0.0.0/8 to the server, and counts what comes back to each of
// them: to the server these are strangers in as many networks.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "longhaul/units.h"

namespace longhaul::attack {

using Bytes = std::vector<uint8_t>;

// 127.x.y.z of an index that is below 2^24 - 2; index 0 is 127.0.0.1.
uint32_t LoopbackHost(uint32_t index);
sockaddr_in Of(uint32_t host, uint16_t port);

// Datagrams at once: less than a small receive buffer holds.
constexpr size_t kGently = 64;
constexpr int kBufferBytes = 4 << 20;

class SpoofingSocket {
 public:
  // Everything goes to this port of 127.0.0.1.
  explicit SpoofingSocket(uint16_t server_port);
  ~SpoofingSocket();
  SpoofingSocket(const SpoofingSocket&) = delete;
  SpoofingSocket& operator=(const SpoofingSocket&) = delete;

  struct Outgoing {
    uint32_t host = LoopbackHost(0);
    ByteSpan bytes;
  };
  // As few system calls as possible; returns how many the kernel took.
  size_t Send(std::span<const Outgoing> datagrams);
  void Send(uint32_t host, ByteSpan bytes);
  // The same, no faster than a server can take them in even when it is slow.
  void SendGently(uint32_t host, std::span<const Bytes> datagrams);

  struct Incoming {
    uint32_t host = 0;
    Bytes bytes;
  };
  // What is there now, and what comes within `limit` after the last one.
  std::vector<Incoming> Receive(Duration limit);

  // UDP payload by host, of everything so far.
  const std::map<uint32_t, uint64_t>& sent() const { return sent_; }
  const std::map<uint32_t, uint64_t>& received() const { return received_; }
  uint16_t port() const { return port_; }

 private:
  int fd_ = -1;
  uint16_t port_ = 0;
  uint16_t server_port_ = 0;
  std::map<uint32_t, uint64_t> sent_, received_;
};

}  // namespace longhaul::attack
