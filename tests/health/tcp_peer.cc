#include "tests/health/tcp_peer.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>

#include "transport/udp/resolve.h"

namespace longhaul::health {
namespace {

using Clock = std::chrono::steady_clock;

int Milliseconds(Clock::time_point end) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
  return static_cast<int>(std::max<int64_t>(0, left));
}

}  // namespace

TcpPeer::TcpPeer(const Address& to, int receive_buffer)
    : socket_(::socket(to.IsV4() ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (receive_buffer > 0)
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  const udp::SocketAddress address = udp::ToSocketAddress(to, to.IsV4() ? AF_INET : AF_INET6);
  ok_ = ::connect(socket_.get(), address.get(), address.size) == 0;
}

bool TcpPeer::Send(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

std::string TcpPeer::Receive(Duration limit) const {
  const auto end = Clock::now() + limit;
  std::string text;
  std::array<char, 65536> buffer;
  for (;;) {
    pollfd ready{socket_.get(), POLLIN, 0};
    if (::poll(&ready, 1, Milliseconds(end)) <= 0) return text;
    const ssize_t bytes = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (bytes <= 0) return text;
    text.append(buffer.data(), static_cast<size_t>(bytes));
  }
}

bool TcpPeer::IsClosedBy(Duration limit) const {
  const auto end = Clock::now() + limit;
  std::array<char, 4096> buffer;
  for (;;) {
    pollfd ready{socket_.get(), POLLIN, 0};
    if (::poll(&ready, 1, Milliseconds(end)) <= 0) return false;
    if (::recv(socket_.get(), buffer.data(), buffer.size(), 0) <= 0) return true;
  }
}

HttpReply ParseReply(const std::string& text) {
  HttpReply reply;
  const size_t end = text.find("\r\n\r\n");
  if (!text.starts_with("HTTP/1.1 ") || end == std::string::npos) return reply;
  reply.head = text.substr(0, end);
  reply.code = std::atoi(text.c_str() + 9);
  const std::string name = "Content-Length: ";
  const size_t length = reply.head.find(name);
  if (length == std::string::npos) return reply;
  const auto bytes = static_cast<size_t>(std::atoll(reply.head.c_str() + length + name.size()));
  if (text.size() == end + 4 + bytes) reply.body = text.substr(end + 4);
  return reply;
}

HttpReply Get(const Address& to, const std::string& path, const std::string& method) {
  const TcpPeer peer(to);
  if (!peer.ok() || !peer.Send(method + " " + path + " HTTP/1.1\r\nHost: test\r\n\r\n")) return {};
  return ParseReply(peer.Receive());
}

}  // namespace longhaul::health
