#include "tests/attack/support/wiretap.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>

namespace longhaul::attack {
namespace {

constexpr size_t kGently = 64;
constexpr int kBufferBytes = 4 << 20;

sockaddr_in Of(uint32_t host, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(host);
  address.sin_port = htons(port);
  return address;
}

int NewSocket() {
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  (void)::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kBufferBytes, sizeof kBufferBytes);
  return fd;
}

}  // namespace

Wiretap::Wiretap(uint16_t server_port) : listening_(NewSocket()), upstream_(NewSocket()) {
  sockaddr_in address = Of(INADDR_LOOPBACK, 0);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(listening_, reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(listening_, reinterpret_cast<sockaddr*>(&address), &size), 0);
  port_ = ntohs(address.sin_port);
  const sockaddr_in server = Of(INADDR_LOOPBACK, server_port);
  EXPECT_EQ(::connect(upstream_, reinterpret_cast<const sockaddr*>(&server), sizeof server), 0);
  thread_ = std::thread([this] { Run(); });
}

Wiretap::~Wiretap() {
  over_ = true;
  thread_.join();
  ::close(listening_);
  ::close(upstream_);
}

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
    if (ready[0].revents != 0) {
      sockaddr_in from{};
      socklen_t size = sizeof from;
      const ssize_t got = ::recvfrom(listening_, buffer.data(), buffer.size(), MSG_DONTWAIT,
                                     reinterpret_cast<sockaddr*>(&from), &size);
      if (got >= 0) {
        worker_ = uint64_t{ntohl(from.sin_addr.s_addr)} << 16 | ntohs(from.sin_port);
        Pass(Direction::kUp, ByteSpan(buffer).first(static_cast<size_t>(got)));
      }
    }
    if (ready[1].revents != 0) {
      const ssize_t got = ::recv(upstream_, buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got >= 0) Pass(Direction::kDown, ByteSpan(buffer).first(static_cast<size_t>(got)));
    }
  }
}

void Wiretap::Pass(Direction direction, ByteSpan bytes) {
  Passing passing{.direction = direction, .bytes = bytes, .drop = false, .before = {}};
  Rule rule;
  {
    const std::lock_guard lock(mutex_);
    recorded_[static_cast<size_t>(direction)].emplace_back(bytes.begin(), bytes.end());
    rule = rule_;
  }
  if (rule) rule(passing);
  InjectGently(direction, passing.before);
  if (!passing.drop) Forward(direction, bytes);
}

void Wiretap::Forward(Direction direction, ByteSpan bytes) {
  if (direction == Direction::kUp) {
    (void)::send(upstream_, bytes.data(), bytes.size(), 0);
  } else if (const uint64_t worker = worker_; worker != 0) {
    const sockaddr_in to = Of(static_cast<uint32_t>(worker >> 16), static_cast<uint16_t>(worker));
    (void)::sendto(listening_, bytes.data(), bytes.size(), 0, reinterpret_cast<const sockaddr*>(&to),
                   sizeof to);
  }
}

}  // namespace longhaul::attack
