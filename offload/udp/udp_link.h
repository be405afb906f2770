// A node's UDP port: packets between its engine and those of other machines, sealed (datagram_seal.h) or,
// with no seal, as they are. Sends in batches by UDP_SEGMENT, receives by UDP_GRO. What is lost the engines
// send again; what is no datagram of a peer is counted and dropped.
//
// When not: between processes of one machine (shared memory is ten times faster), or across datacenters: no
// congestion control beyond the engines' windows.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "offload/port/node_link.h"
#include "offload/udp/datagram_batch.h"
#include "offload/udp/datagram_seal.h"
#include "transport/udp/socket.h"

namespace longhaul::offload {

struct UdpLinkOptions {
  uint8_t node = 0;
  Address bind;
  SiteOptions site = {};                 // the same for all nodes: they tell each other
  std::optional<SealOptions> seal = {};  // none: not encrypted; the address tells the peer
  udp::SocketOptions socket = {};
  Duration most_silence = std::chrono::seconds(10);  // warned of then; machines start within seconds
};

class UdpLink : public NodeLink {
 public:
  // Errors: those of UdpSocket::Open.
  static Result<std::unique_ptr<UdpLink>> Open(UdpLinkOptions options);

  // Where that node's datagrams go.
  void SetPeer(uint8_t node, const Address& address) { peers_[node].address = address; }
  const Address& local_address() const { return socket_.local_address(); }
  // Settings of this machine that the operator can improve.
  const std::vector<std::string>& warnings() const { return socket_.warnings(); }
  ByteCount receive_buffer() const { return socket_.receive_buffer(); }  // as granted
  UdpCounters counters() const;

  uint8_t node() const override { return options_.node; }
  int fd() const override { return socket_.fd(); }
  bool Fetch() override;
  void Deliver(Instant now, Engine& engine) override;
  bool Transmit(Instant now, Engine& engine) override;
  bool IsBlocked() const override { return blocked_; }
  std::string TakeWarning() override { return std::exchange(warning_, {}); }

 private:
  struct Peer {
    std::optional<Address> address;
    DatagramBatch batch;
    bool met = false;                    // a datagram of it has opened
    bool complained = false;             // of its key or its silence, since the last that opened
    Instant called = Instant();          // the first hello; 0: none
    std::optional<uint64_t> other_site;  // complained of
  };
  // Packets of a turn: with the largest segs 4 MiB, some ms.
  static constexpr size_t kMostPackets = 512;

  UdpLink(UdpLinkOptions options, udp::UdpSocket socket);

  void Take(Instant now, const udp::ReceivedDatagram& datagram, Engine& engine);
  std::optional<DatagramSeal::Opened> Open(Instant now, const udp::ReceivedDatagram& datagram);
  void Queue(uint8_t target, ByteSpan packet);
  void SendHellos(Instant now);
  void OnForged(const Address& from);
  void OnOpened(const DatagramSeal::Opened& opened);
  void Complain(uint8_t node, const std::string& of);
  void Warn(const std::string& sentence) { warning_ += (warning_.empty() ? "" : "; ") + sentence; }
  void Flush(Peer& peer);
  // False: something waits for room.
  bool FlushAll();

  UdpLinkOptions options_;
  udp::UdpSocket socket_;
  UdpCounters counters_;  // what the socket does not count
  std::optional<DatagramSeal> seal_;
  std::array<Peer, kMaxNodes> peers_;
  std::vector<uint8_t> packet_;
  std::span<const udp::ReceivedDatagram> fetched_;
  bool blocked_ = false;
  std::string warning_;
};

}  // namespace longhaul::offload
