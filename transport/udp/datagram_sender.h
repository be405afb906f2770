// Sends runs of equal datagrams with as few system calls as the kernel and the path allow.
//
//   UDP_SEGMENT: one sendmsg, the kernel or the card cuts          (7 x faster than sendmmsg on loopback)
//   sendmmsg:    one call, but one trip through the stack per datagram
//
// UDP_SEGMENT may fail on a path even after it has worked: the route moved to a tunnel or to a card without
// checksum offload. Then *the same* batch goes out through sendmmsg at once, and the destination is marked so
// that later batches do not try.
//
// Not thread-safe.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <unordered_set>

#include "base/address.h"
#include "base/bytes.h"

namespace longhaul::udp {

inline constexpr size_t kMaxSegments = 64;       // what kernels since 4.18 take
inline constexpr size_t kMaxBatchBytes = 65507;  // the largest UDP payload over IPv4

// The system calls of sending, as values: tests put failures here.
struct SendCalls {
  std::function<ssize_t(int, const msghdr*, int)> sendmsg;
  std::function<int(int, mmsghdr*, unsigned, int)> sendmmsg;
  static SendCalls System();
};

enum class SendOutcome : uint8_t {
  kDone,        // Nothing of the batch is left to do.
  kWouldBlock,  // The socket's buffer is full; go on with the rest when it is writable.
  kTooBig,      // The path or the interface refuses datagrams of this size; the rest was not sent.
};

struct SendResult {
  SendOutcome outcome = SendOutcome::kDone;
  // Bytes from the front that were handed to the kernel or given up (and counted): always whole datagrams.
  size_t done_bytes = 0;
};

// Since the socket was opened. A datagram given up by an error is lost as if on the network.
struct SendCounters {
  uint64_t datagrams = 0;  // taken by the kernel
  uint64_t bytes = 0;      // UDP payload of these
  uint64_t gso_calls = 0;
  uint64_t sendmmsg_calls = 0;
  uint64_t sendmsg_calls = 0;       // a datagram alone
  uint64_t would_block = 0;         // calls that found the buffer full
  uint64_t too_big = 0;             // EMSGSIZE
  uint64_t connection_refused = 0;  // an ICMP about an earlier datagram, reported here; the send is repeated
  uint64_t not_permitted = 0;       // given up: a firewall of this host
  uint64_t unreachable = 0;         // given up: no route, wrong address family, interface down
  uint64_t other_errors = 0;        // given up
  uint64_t gso_fallbacks = 0;       // batches sent again after UDP_SEGMENT failed
  uint64_t paths_without_gso = 0;   // destinations marked
};

class DatagramSender {
 public:
  // `fd` is a socket of `family` and must outlive the sender.
  DatagramSender(int fd, int family, bool gso, SendCalls calls);

  // Sends `bytes` as datagrams of `segment_bytes`, of which the last may be shorter, in this order.
  // REQUIRES: 0 < segment_bytes, 0 < bytes.size() <= kMaxBatchBytes, at most kMaxSegments datagrams.
  // ect0: marked as ECN-capable.
  SendResult Send(const Address& to, ByteSpan bytes, size_t segment_bytes, bool ect0 = false);

  const SendCounters& counters() const { return counters_; }
  // Whether batches to this destination go out with UDP_SEGMENT.
  bool UsesGso(const Address& to) const;

 private:
  SendResult SendSegmented(const Address& to, msghdr& message, ByteSpan bytes, size_t segment_bytes, bool v4,
                           bool ect0);
  SendResult SendEach(const msghdr& message, ByteSpan bytes, size_t segment_bytes);
  // What to do about a failed call: kDone means "give the datagram up, it is counted".
  SendOutcome CountError(int error);
  void MarkPath(const Address& to);

  int fd_;
  int family_;
  bool gso_;
  SendCalls calls_;
  std::unordered_set<Address> paths_without_gso_;  // ports are zero; bounded by kMaxMarkedPaths
  SendCounters counters_;
};

}  // namespace longhaul::udp
