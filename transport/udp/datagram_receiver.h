// Receives datagrams in batches: recvmmsg into preallocated buffers of 64 KiB each, so that a buffer can hold
// what UDP_GRO has merged; merged runs are cut up again here.
//
// Not thread-safe.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/address.h"
#include "base/bytes.h"
#include "transport/core/datagram_core.h"
#include "transport/udp/clock.h"
#include "transport/udp/resolve.h"

namespace longhaul::udp {

struct ReceivedDatagram {
  Address from;
  MutableByteSpan bytes;  // lives until the next Receive()
  transport::ReceiveInfo info;
};

// Since the socket was opened.
struct ReceiveCounters {
  uint64_t datagrams = 0;
  uint64_t bytes = 0;   // UDP payload
  uint64_t calls = 0;   // recvmmsg
  uint64_t merged = 0;  // buffers that held more than one datagram
  uint64_t ecn_ce = 0;
  uint64_t host_drops = 0;  // by a full receive buffer, from SO_RXQ_OVFL: a merged run counts once
  uint64_t truncated = 0;   // longer than a buffer; dropped
  uint64_t empty = 0;       // without payload; dropped
  uint64_t errors = 0;      // reported by the socket instead of a datagram, for example an ICMP
};

class DatagramReceiver {
 public:
  static constexpr size_t kBuffers = 16;
  static constexpr size_t kBufferBytes = 65536;

  // `fd` is a socket that must outlive the receiver.
  explicit DatagramReceiver(int fd);

  // What is there, in order of arrival, without waiting; empty when nothing is. The result and the bytes in
  // it live until the next call.
  std::span<const ReceivedDatagram> Receive();
  // Whether the last Receive() used every buffer, so that more may wait.
  bool MayHaveMore() const { return may_have_more_; }

  const ReceiveCounters& counters() const { return counters_; }

 private:
  struct Metadata {
    size_t segment_bytes = 0;
    bool ecn_ce = false;
    bool ecn_ect0 = false;
    Instant received = Instant::Infinite();
    void TakeEcn(int tos);
  };

  void PrepareMessages();
  int ReceiveMessages();
  Metadata ReadControl(msghdr& message);
  void Cut(size_t buffer);

  int fd_;
  std::vector<uint8_t> memory_;
  std::array<SocketAddress, kBuffers> from_;
  std::array<iovec, kBuffers> data_;
  std::array<mmsghdr, kBuffers> messages_;
  std::vector<uint8_t> control_;
  std::vector<ReceivedDatagram> datagrams_;
  uint32_t last_overflow_ = 0;
  StampClock stamp_clock_;
  bool may_have_more_ = false;
  ReceiveCounters counters_;
};

}  // namespace longhaul::udp
