#include "tests/attack/support/spoofing_socket.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>

namespace longhaul::attack {
namespace {

constexpr size_t kBatch = 64;
constexpr size_t kControl = CMSG_SPACE(sizeof(in_pktinfo));

// The address that a datagram is said to come from.
void SetSource(msghdr& message, uint8_t* control, uint32_t host) {
  message.msg_control = control;
  message.msg_controllen = kControl;
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = IPPROTO_IP;
  c->cmsg_type = IP_PKTINFO;
  c->cmsg_len = CMSG_LEN(sizeof(in_pktinfo));
  in_pktinfo info{};
  info.ipi_spec_dst.s_addr = htonl(host);
  std::memcpy(CMSG_DATA(c), &info, sizeof info);
}

}  // namespace

sockaddr_in Of(uint32_t host, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(host);
  address.sin_port = htons(port);
  return address;
}

uint32_t LoopbackHost(uint32_t index) { return 0x7f000001u + index; }

SpoofingSocket::SpoofingSocket(uint16_t server_port)
    : fd_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)), server_port_(server_port) {
  const int on = 1;
  EXPECT_EQ(::setsockopt(fd_, IPPROTO_IP, IP_PKTINFO, &on, sizeof on), 0);
  (void)::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &kBufferBytes, sizeof kBufferBytes);
  sockaddr_in address = Of(INADDR_ANY, 0);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(fd_, reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
  port_ = ntohs(address.sin_port);
}

SpoofingSocket::~SpoofingSocket() { ::close(fd_); }

size_t SpoofingSocket::Send(std::span<const Outgoing> datagrams) {
  sockaddr_in to = Of(INADDR_LOOPBACK, server_port_);
  std::array<mmsghdr, kBatch> messages{};
  std::array<iovec, kBatch> data{};
  alignas(cmsghdr) std::array<std::array<uint8_t, kControl>, kBatch> control{};
  size_t taken = 0;
  while (!datagrams.empty()) {
    const size_t count = std::min(kBatch, datagrams.size());
    for (size_t i = 0; i < count; ++i) {
      data[i] = {const_cast<uint8_t*>(datagrams[i].bytes.data()), datagrams[i].bytes.size()};
      msghdr& message = messages[i].msg_hdr;
      message = {};
      message.msg_name = &to;
      message.msg_namelen = sizeof to;
      message.msg_iov = &data[i];
      message.msg_iovlen = 1;
      SetSource(message, control[i].data(), datagrams[i].host);
      sent_[datagrams[i].host] += datagrams[i].bytes.size();
    }
    const int sent = ::sendmmsg(fd_, messages.data(), static_cast<unsigned>(count), 0);
    taken += static_cast<size_t>(std::max(0, sent));
    datagrams = datagrams.subspan(count);
  }
  return taken;
}

void SpoofingSocket::Send(uint32_t host, ByteSpan bytes) {
  const Outgoing one{host, bytes};
  EXPECT_EQ(Send(std::span(&one, 1)), 1u);
}

void SpoofingSocket::SendGently(uint32_t host, std::span<const Bytes> datagrams) {
  for (size_t i = 0; i < datagrams.size(); ++i) {
    Send(host, datagrams[i]);
    if (i % kGently == kGently - 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

std::vector<SpoofingSocket::Incoming> SpoofingSocket::Receive(Duration limit) {
  std::vector<Incoming> all;
  const int wait = static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(limit).count());
  for (pollfd ready{fd_, POLLIN, 0}; ::poll(&ready, 1, wait) == 1;) {
    Incoming datagram;
    datagram.bytes.resize(65536);
    iovec data{datagram.bytes.data(), datagram.bytes.size()};
    alignas(cmsghdr) std::array<uint8_t, 128> control{};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = ::recvmsg(fd_, &message, MSG_DONTWAIT);
    if (got < 0) continue;
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      if (c->cmsg_level != IPPROTO_IP || c->cmsg_type != IP_PKTINFO) continue;
      in_pktinfo info{};
      std::memcpy(&info, CMSG_DATA(c), sizeof info);
      datagram.host = ntohl(info.ipi_addr.s_addr);
    }
    datagram.bytes.resize(static_cast<size_t>(got));
    received_[datagram.host] += datagram.bytes.size();
    all.push_back(std::move(datagram));
  }
  return all;
}

}  // namespace longhaul::attack
