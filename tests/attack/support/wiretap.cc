#include "tests/attack/support/wiretap.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <span>

#include "tests/attack/support/spoofing_socket.h"

namespace longhaul::attack {
namespace {

int NewSocket() {
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  (void)::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kBufferBytes, sizeof kBufferBytes);
  const int on = 1;
  EXPECT_EQ(::setsockopt(fd, IPPROTO_IP, IP_RECVTOS, &on, sizeof on), 0);
  return fd;
}

// A datagram, with its source and the ECN bits of its IP header; -1: none is here.
ssize_t ReceiveWithMark(int fd, std::span<uint8_t> buffer, sockaddr_in* from, int* ecn) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  iovec part{buffer.data(), buffer.size()};
  msghdr message{};
  message.msg_name = from;
  message.msg_namelen = sizeof *from;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = ::recvmsg(fd, &message, MSG_DONTWAIT);
  *ecn = 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); got >= 0 && c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) *ecn = *CMSG_DATA(c) & 3;
  }
  return got;
}

}  // namespace

Wiretap::Wiretap(uint16_t server_port)
    : server_port_(server_port), listening_(NewSocket()), upstream_(NewUpstream()) {
  sockaddr_in address = Of(INADDR_LOOPBACK, 0);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(listening_, reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(listening_, reinterpret_cast<sockaddr*>(&address), &size), 0);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Run(); });
}

Wiretap::~Wiretap() {
  over_ = true;
  thread_.join();
  ::close(listening_);
  ::close(upstream_);
  for (const int fd : retired_) ::close(fd);
}

int Wiretap::NewUpstream() const {
  const int fd = NewSocket();
  const sockaddr_in server = Of(INADDR_LOOPBACK, server_port_);
  EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&server), sizeof server), 0);
  return fd;
}

// The old socket stays open, unread, so that nothing else on this machine can get its port.
void Wiretap::Rebind() { retired_.push_back(upstream_.exchange(NewUpstream())); }

void Wiretap::SetRule(Rule rule) {
  const std::lock_guard lock(mutex_);
  rule_ = std::move(rule);
}

void Wiretap::Inject(Direction direction, ByteSpan bytes) {
  ++injected_;
  Forward(direction, bytes);
}

void Wiretap::InjectGently(Direction direction, const std::vector<Bytes>& datagrams) {
  for (size_t i = 0; i < datagrams.size(); ++i) {
    Inject(direction, datagrams[i]);
    if (i % kGently == kGently - 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

std::vector<Bytes> Wiretap::Recorded(Direction direction) const {
  const std::lock_guard lock(mutex_);
  return recorded_[static_cast<size_t>(direction)];
}

void Wiretap::Run() {
  Bytes buffer(65536);
  while (!over_) {
    std::array<pollfd, 2> ready = {pollfd{listening_, POLLIN, 0}, pollfd{upstream_, POLLIN, 0}};
    if (::poll(ready.data(), ready.size(), 20) <= 0) continue;
    int ecn = 0;
    sockaddr_in from{};
    if (ready[0].revents != 0) {
      const ssize_t got = ReceiveWithMark(listening_, buffer, &from, &ecn);
      if (got >= 0) {
        worker_ = uint64_t{ntohl(from.sin_addr.s_addr)} << 16 | ntohs(from.sin_port);
        Pass(Direction::kUp, ByteSpan(buffer).first(static_cast<size_t>(got)), ecn);
      }
    }
    if (ready[1].revents != 0) {
      const ssize_t got = ReceiveWithMark(ready[1].fd, buffer, &from, &ecn);
      if (got >= 0) Pass(Direction::kDown, ByteSpan(buffer).first(static_cast<size_t>(got)), ecn);
    }
  }
}

void Wiretap::Pass(Direction direction, ByteSpan bytes, int ecn) {
  Passing passing{.direction = direction, .bytes = bytes, .drop = false, .ecn = ecn, .before = {}};
  Rule rule;
  {
    const std::lock_guard lock(mutex_);
    recorded_[static_cast<size_t>(direction)].emplace_back(bytes.begin(), bytes.end());
    rule = rule_;
  }
  if (rule) rule(passing);
  InjectGently(direction, passing.before);
  if (!passing.drop) Forward(direction, bytes, passing.ecn);
}

void Wiretap::Forward(Direction direction, ByteSpan bytes, int ecn) {
  const int out = direction == Direction::kUp ? upstream_.load() : listening_;
  (void)::setsockopt(out, IPPROTO_IP, IP_TOS, &ecn, sizeof ecn);
  if (direction == Direction::kUp) {
    (void)::send(out, bytes.data(), bytes.size(), 0);
  } else if (const uint64_t worker = worker_; worker != 0) {
    const sockaddr_in to = Of(static_cast<uint32_t>(worker >> 16), static_cast<uint16_t>(worker));
    (void)::sendto(out, bytes.data(), bytes.size(), 0, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  }
}

}  // namespace longhaul::attack
