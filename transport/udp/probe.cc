#include "transport/udp/probe.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/files.h"
#include "transport/udp/resolve.h"

namespace longhaul::udp {
namespace {

std::string WordsOf(int error) {
  switch (error) {
    case ECONNREFUSED:
      return "the host is there, but no program listens on this UDP port (or a firewall says so)";
    case EHOSTUNREACH:
    case ENETUNREACH:
      return "the network says that no way leads to this host";
    case EACCES:
    case EPERM:
      return "a firewall says that it lets no UDP through to there";
    default:
      return "";
  }
}

}  // namespace

std::string Probe(const Address& peer, Duration limit) {
  const int family = peer.IsV4() ? AF_INET : AF_INET6;
  const FileDescriptor socket(::socket(family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const SocketAddress address = ToSocketAddress(peer, family);
  if (!socket.valid()) return "";
  // A connected socket reports the errors; the byte is too short to be a packet.
  if (::connect(socket.get(), address.get(), address.size) != 0) return WordsOf(errno);
  if (::send(socket.get(), "", 1, MSG_NOSIGNAL) < 0) return WordsOf(errno);
  pollfd readable{socket.get(), POLLIN, 0};
  const auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(limit);
  if (::poll(&readable, 1, static_cast<int>(wait.count())) <= 0) return "";
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return WordsOf(error);
}

}  // namespace longhaul::udp
