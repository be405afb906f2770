#include "transport/udp/datagram_sender.h"

#include <netinet/in.h>
#include <netinet/udp.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/inject.h"
#include "transport/udp/resolve.h"

namespace longhaul::udp {
namespace {

// A peer can make us mark its own address only; beyond this many the whole socket gives UDP_SEGMENT up.
constexpr size_t kMaxMarkedPaths = 4096;
// Pending ICMP errors are reported once each; more in a row are ignored.
constexpr int kMaxRetries = 8;

// Which errors of a segmented send mean "not this way" rather than "not now" or "not to there". EINVAL is
// also what kernels before 6.13 answer when a segment is larger than the path's MTU.
bool SaysNoSegmentation(int error) {
  return error == EIO || error == EINVAL || error == ENOTSUP || error == ENOPROTOOPT || error == EOPNOTSUPP;
}

Address PathOf(Address to) {
  to.port = 0;
  return to;
}

constexpr int kEct0 = 2;

// The control messages of a send.
class SendControl {
 public:
  void AddSegmentBytes(size_t segment_bytes) {
    Add(SOL_UDP, UDP_SEGMENT, static_cast<uint16_t>(segment_bytes));
  }
  void AddEct0(bool v4) { Add(v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TOS : IPV6_TCLASS, kEct0); }
  void AttachTo(msghdr& message) {
    message.msg_control = size_ > 0 ? bytes_.data() : nullptr;
    message.msg_controllen = size_;
  }

 private:
  template <typename T>
  void Add(int level, int type, T value) {
    cmsghdr header{};
    header.cmsg_level = level;
    header.cmsg_type = type;
    header.cmsg_len = CMSG_LEN(sizeof value);
    std::memcpy(bytes_.data() + size_, &header, sizeof header);
    std::memcpy(bytes_.data() + size_ + CMSG_LEN(0), &value, sizeof value);
    size_ += CMSG_SPACE(sizeof value);
  }

  alignas(cmsghdr) std::array<uint8_t, CMSG_SPACE(sizeof(uint16_t)) + CMSG_SPACE(sizeof(int))> bytes_{};
  size_t size_ = 0;
};

iovec ToIovec(ByteSpan bytes) {
  return {const_cast<uint8_t*>(bytes.data()), bytes.size()};  // the kernel only reads it
}

}  // namespace

SendCalls SendCalls::System() {
  return {[](int fd, const msghdr* message, int flags) { return ::sendmsg(fd, message, flags); },
          [](int fd, mmsghdr* messages, unsigned count, int flags) {
            return ::sendmmsg(fd, messages, count, flags);
          }};
}

DatagramSender::DatagramSender(int fd, int family, bool gso, SendCalls calls)
    : fd_(fd), family_(family), gso_(gso), calls_(std::move(calls)) {}

bool DatagramSender::UsesGso(const Address& to) const {
  return gso_ && (paths_without_gso_.empty() || !paths_without_gso_.contains(PathOf(to)));
}

SendResult DatagramSender::Send(const Address& to, ByteSpan bytes, size_t segment_bytes, bool ect0) {
  LH_CHECK_OP(segment_bytes, >, 0u);
  LH_CHECK_OP(bytes.size(), >, 0u);
  LH_CHECK_OP(bytes.size(), <=, kMaxBatchBytes);
  LH_CHECK_OP((bytes.size() + segment_bytes - 1) / segment_bytes, <=, kMaxSegments);

  if (LH_INJECT("socket-full")) return {CountError(EAGAIN), 0};
  SocketAddress destination = ToSocketAddress(to, family_);
  if (destination.size == 0 || to.port == 0) {
    ++counters_.unreachable;
    return {SendOutcome::kDone, bytes.size()};
  }
  msghdr message{};
  message.msg_name = destination.get();
  message.msg_namelen = destination.size;
  // A dual-stack socket takes an IPv4-mapped destination's mark as IPv4's.
  const bool v4 = to.IsV4();
  if (bytes.size() > segment_bytes && UsesGso(to)) {
    return SendSegmented(to, message, bytes, segment_bytes, v4, ect0);
  }
  SendControl control;
  if (ect0) control.AddEct0(v4);
  control.AttachTo(message);
  return SendEach(message, bytes, segment_bytes);
}

SendResult DatagramSender::SendSegmented(const Address& to, msghdr& message, ByteSpan bytes,
                                         size_t segment_bytes, bool v4, bool ect0) {
  SendControl mark;
  if (ect0) mark.AddEct0(v4);
  SendControl control = mark;
  control.AddSegmentBytes(segment_bytes);
  control.AttachTo(message);
  iovec data = ToIovec(bytes);
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  int error = 0;
  for (int attempt = 0; attempt < kMaxRetries; ++attempt) {
    ++counters_.gso_calls;
    if (calls_.sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
      counters_.datagrams += (bytes.size() + segment_bytes - 1) / segment_bytes;
      counters_.bytes += bytes.size();
      return {SendOutcome::kDone, bytes.size()};
    }
    error = errno;
    if (error == ECONNREFUSED) ++counters_.connection_refused;
    if (error != EINTR && error != ECONNREFUSED) break;
  }
  if (SaysNoSegmentation(error)) {
    ++counters_.gso_fallbacks;
    mark.AttachTo(message);
    const SendResult result = SendEach(message, bytes, segment_bytes);
    // Too big is no reason to blame segmentation, and a full buffer proves nothing yet.
    if (result.outcome == SendOutcome::kDone) MarkPath(to);
    return result;
  }
  const SendOutcome outcome = CountError(error);
  return {outcome, outcome == SendOutcome::kDone ? bytes.size() : 0};
}

SendResult DatagramSender::SendEach(const msghdr& message, ByteSpan bytes, size_t segment_bytes) {
  std::array<iovec, kMaxSegments> data;
  std::array<mmsghdr, kMaxSegments> messages;
  size_t count = 0;
  for (size_t at = 0; at < bytes.size(); at += segment_bytes, ++count) {
    data[count] = ToIovec(bytes.subspan(at, std::min(segment_bytes, bytes.size() - at)));
    messages[count] = {message, 0};
    messages[count].msg_hdr.msg_iov = &data[count];
    messages[count].msg_hdr.msg_iovlen = 1;
  }
  size_t done = 0;
  int retries = 0;
  while (done < count) {
    const bool alone = count - done == 1;
    ++(alone ? counters_.sendmsg_calls : counters_.sendmmsg_calls);
    // sendmmsg stops at the first datagram that fails and reports its error only when it is called again.
    const ssize_t sent =
        alone ? (calls_.sendmsg(fd_, &messages[done].msg_hdr, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -1 : 1)
              : calls_.sendmmsg(fd_, &messages[done], static_cast<unsigned>(count - done),
                                MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      for (ssize_t i = 0; i < sent; ++i, ++done) counters_.bytes += data[done].iov_len;
      counters_.datagrams += static_cast<uint64_t>(sent);
      continue;
    }
    const int error = sent < 0 ? errno : EIO;
    if (error == ECONNREFUSED) ++counters_.connection_refused;
    if ((error == EINTR || error == ECONNREFUSED) && ++retries < kMaxRetries) continue;
    const SendOutcome outcome = CountError(error);
    if (outcome != SendOutcome::kDone) return {outcome, done * segment_bytes};
    ++done;  // A firewall may refuse one datagram and take the next.
  }
  return {SendOutcome::kDone, bytes.size()};
}

SendOutcome DatagramSender::CountError(int error) {
  switch (error) {
    case EAGAIN:
      ++counters_.would_block;
      return SendOutcome::kWouldBlock;
    case EMSGSIZE:
      ++counters_.too_big;
      return SendOutcome::kTooBig;
    case EPERM:
    case EACCES:
      ++counters_.not_permitted;
      return SendOutcome::kDone;
    case ENETUNREACH:
    case EHOSTUNREACH:
    case ENETDOWN:
    case EAFNOSUPPORT:
    case EADDRNOTAVAIL:
      ++counters_.unreachable;
      return SendOutcome::kDone;
    default:
      ++counters_.other_errors;
      return SendOutcome::kDone;
  }
}

void DatagramSender::MarkPath(const Address& to) {
  ++counters_.paths_without_gso;
  paths_without_gso_.insert(PathOf(to));
  if (paths_without_gso_.size() <= kMaxMarkedPaths) return;
  gso_ = false;
  paths_without_gso_.clear();
}

}  // namespace longhaul::udp
