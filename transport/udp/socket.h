// A UDP socket that moves datagrams in batches: opens, binds and tunes it; sending and receiving are in
// datagram_sender.h and datagram_receiver.h.
//
//   send:    one sendmsg with UDP_SEGMENT, or sendmmsg where the kernel or the path cannot
//   receive: recvmmsg with UDP_GRO into buffers of its own, cut up again by the segment size
//
// Datagrams leave with "don't fragment" set. Not thread-safe. Move-only.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/address.h"
#include "base/bytes.h"
#include "base/files.h"
#include "longhaul/status.h"
#include "longhaul/units.h"
#include "transport/udp/datagram_receiver.h"
#include "transport/udp/datagram_sender.h"

namespace longhaul::udp {

struct SocketOptions {
  // Requested from the kernel; a warning reports when less was granted. Absorbs what arrives while the owning
  // thread is busy: 4 MiB is 33 ms at 1 Gbit/s.
  ByteCount receive_buffer{4 << 20};
  ByteCount send_buffer{4 << 20};
  // Try to go beyond net.core.*mem_max, which needs CAP_NET_ADMIN. Off in tests.
  bool force_buffers = true;
  // Use UDP_SEGMENT and UDP_GRO where the kernel has them.
  bool segmentation_offload = true;
  // Marks what the core asks for (Transmit::ect0) as ECT(0). False: nothing is marked.
  bool ecn_capable = true;
  // How system calls are made; tests replace it.
  SendCalls calls = SendCalls::System();
};

class UdpSocket {
 public:
  // Opens a non-blocking socket and binds it; port 0 takes any free port. [::] also receives IPv4.
  // Errors: kAlreadyExists (port in use), kInvalidArgument (no interface has this address),
  // kPermissionDenied (ports below 1024), kUnavailable (no IPv6 here), kInternal; with the address named.
  static Result<UdpSocket> Open(const Address& bind, const SocketOptions& options = {});
  // An address for a client to bind so that it can reach `peer`: the wildcard of the peer's family, any port.
  static Address AnyAddressFor(const Address& peer);

  // --- Questions ---
  int fd() const { return fd_.get(); }
  // With the real port; 127.0.0.1:0 has become 127.0.0.1:41234.
  const Address& local_address() const { return local_; }
  // Settings that the operator can improve: one sentence each, naming the sysctl.
  const std::vector<std::string>& warnings() const { return warnings_; }
  ByteCount receive_buffer() const { return receive_buffer_; }  // as granted
  ByteCount send_buffer() const { return send_buffer_; }
  const SendCounters& send_counters() const { return sender_->counters(); }
  const ReceiveCounters& receive_counters() const { return receiver_->counters(); }

  // --- Requests ---
  // See DatagramSender::Send.
  SendResult Send(const Address& to, ByteSpan bytes, size_t segment_bytes, bool ect0 = false) {
    return sender_->Send(to, bytes, segment_bytes, ect0 && ecn_capable_);
  }
  // See DatagramReceiver::Receive.
  std::span<const ReceivedDatagram> Receive() { return receiver_->Receive(); }
  // Whether the last Receive() may have left datagrams in the kernel.
  bool MayHaveMore() const { return receiver_->MayHaveMore(); }

 private:
  UdpSocket(FileDescriptor fd, int family) : fd_(std::move(fd)), family_(family) {}

  Status Bind(const Address& bind);
  Status Configure(const SocketOptions& options);
  ByteCount TuneBuffer(bool receive, ByteCount wanted, bool force);

  FileDescriptor fd_;
  int family_;
  Address local_;
  bool ecn_capable_ = true;
  ByteCount receive_buffer_;
  ByteCount send_buffer_;
  std::vector<std::string> warnings_;
  std::unique_ptr<DatagramSender> sender_;
  std::unique_ptr<DatagramReceiver> receiver_;
};

}  // namespace longhaul::udp
