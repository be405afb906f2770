#include "transport/udp/datagram_receiver.h"

#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/udp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace longhaul::udp {
namespace {

// TOS or TCLASS, SO_RXQ_OVFL, SCM_TIMESTAMPNS and UDP_GRO, with room for one more of each.
constexpr size_t kControlBytes = 256;
// Pending ICMP errors come one per call.
constexpr int kMaxErrorsInARow = 8;

template <typename T>
T ReadValue(const cmsghdr* header) {
  T value{};
  std::memcpy(&value, CMSG_DATA(header), sizeof value);
  return value;
}

}  // namespace

void DatagramReceiver::Metadata::TakeEcn(int tos) {
  ecn_ce = (tos & IPTOS_ECN_MASK) == IPTOS_ECN_CE;
  ecn_ect0 = (tos & IPTOS_ECN_MASK) == IPTOS_ECN_ECT0;
}

DatagramReceiver::DatagramReceiver(int fd)
    : fd_(fd), memory_(kBuffers * kBufferBytes), control_(kBuffers * kControlBytes) {
  datagrams_.reserve(kBuffers * 64);
}

std::span<const ReceivedDatagram> DatagramReceiver::Receive() {
  datagrams_.clear();
  const int count = ReceiveMessages();
  may_have_more_ = count == static_cast<int>(kBuffers);
  if (count > 0) stamp_clock_.Read();
  for (int i = 0; i < count; ++i) Cut(static_cast<size_t>(i));
  return datagrams_;
}

void DatagramReceiver::PrepareMessages() {
  for (size_t i = 0; i < kBuffers; ++i) {
    data_[i] = {memory_.data() + i * kBufferBytes, kBufferBytes};
    msghdr& message = messages_[i].msg_hdr;
    message = {};
    message.msg_name = &from_[i].storage;
    message.msg_namelen = sizeof from_[i].storage;
    message.msg_iov = &data_[i];
    message.msg_iovlen = 1;
    message.msg_control = control_.data() + i * kControlBytes;
    message.msg_controllen = kControlBytes;
  }
}

int DatagramReceiver::ReceiveMessages() {
  for (int attempt = 0; attempt < kMaxErrorsInARow; ++attempt) {
    PrepareMessages();
    ++counters_.calls;
    const int count = ::recvmmsg(fd_, messages_.data(), kBuffers, MSG_DONTWAIT, nullptr);
    if (count >= 0) return count;
    if (errno == EAGAIN) return 0;
    if (errno != EINTR) ++counters_.errors;
  }
  return 0;
}

DatagramReceiver::Metadata DatagramReceiver::ReadControl(msghdr& message) {
  Metadata metadata;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO) {
      metadata.segment_bytes = static_cast<size_t>(std::max(0, ReadValue<int>(c)));
    } else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) {
      metadata.TakeEcn(ReadValue<uint8_t>(c));
    } else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS) {
      metadata.TakeEcn(ReadValue<int>(c));
    } else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_RXQ_OVFL) {
      const auto overflow = ReadValue<uint32_t>(c);
      counters_.host_drops +=
          overflow - last_overflow_;  // the kernel's counter wraps, the difference does not
      last_overflow_ = overflow;
    } else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPNS) {
      const auto stamp = ReadValue<timespec>(c);
      metadata.received = stamp_clock_.At(int64_t{stamp.tv_sec} * 1'000'000'000 + stamp.tv_nsec);
    }
  }
  return metadata;
}

void DatagramReceiver::Cut(size_t buffer) {
  msghdr& message = messages_[buffer].msg_hdr;
  const size_t size = messages_[buffer].msg_len;
  const Metadata metadata = ReadControl(message);
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    ++counters_.truncated;
    return;
  }
  if (size == 0) {
    ++counters_.empty;
    return;
  }
  const size_t segment = metadata.segment_bytes > 0 ? metadata.segment_bytes : size;
  if (segment < size) ++counters_.merged;
  from_[buffer].size = message.msg_namelen;
  const Address from = FromSocketAddress(from_[buffer]);
  uint8_t* bytes = memory_.data() + buffer * kBufferBytes;
  for (size_t at = 0; at < size; at += segment) {
    datagrams_.push_back({from, MutableByteSpan(bytes + at, std::min(segment, size - at)),
                          transport::ReceiveInfo{metadata.ecn_ce, counters_.host_drops, metadata.ecn_ect0,
                                                 metadata.received}});
    ++counters_.datagrams;
    if (metadata.ecn_ce) ++counters_.ecn_ce;
  }
  counters_.bytes += size;
}

}  // namespace longhaul::udp
