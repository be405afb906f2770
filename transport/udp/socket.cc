#include "transport/udp/socket.h"

#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/udp.h>

#include <cerrno>
#include <cstring>

#include "transport/udp/resolve.h"

#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace longhaul::udp {
namespace {

bool SetInt(int fd, int level, int option, int value) {
  return ::setsockopt(fd, level, option, &value, sizeof value) == 0;
}

int GetInt(int fd, int level, int option) {
  int value = 0;
  socklen_t size = sizeof value;
  return ::getsockopt(fd, level, option, &value, &size) == 0 ? value : -1;
}

std::string Reason() { return std::strerror(errno); }

Status BindError(const Address& address, int error) {
  const std::string where = "UDP " + address.ToString();
  switch (error) {
    case EADDRINUSE:
      return Status(StatusCode::kAlreadyExists, where + " is in use by another program");
    case EADDRNOTAVAIL:
      return Status(StatusCode::kInvalidArgument, where + ": no interface of this machine has this address");
    case EACCES:
    case EPERM:
      return Status(StatusCode::kPermissionDenied,
                    where + " may not be used: ports below 1024 need privileges");
    default:
      return Status(StatusCode::kInternal, "binding to " + where + " failed: " + std::strerror(error));
  }
}

Status OpenError(const Address& address, int error) {
  if (error == EAFNOSUPPORT && !address.IsV4()) {
    return Status(StatusCode::kUnavailable,
                  "this machine has no IPv6, so UDP " + address.ToString() +
                      " cannot be used; try 0.0.0.0:" + std::to_string(address.port));
  }
  return Status(StatusCode::kInternal,
                "opening a UDP socket for " + address.ToString() + " failed: " + std::strerror(error));
}

}  // namespace

Address UdpSocket::AnyAddressFor(const Address& peer) {
  return peer.IsV4() ? Address::V4(0, 0, 0, 0, 0) : Address{};
}

Result<UdpSocket> UdpSocket::Open(const Address& bind, const SocketOptions& options) {
  const int family = bind.IsV4() ? AF_INET : AF_INET6;
  FileDescriptor fd(::socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_UDP));
  if (!fd.valid()) return OpenError(bind, errno);
  UdpSocket socket(std::move(fd), family);
  if (Status status = socket.Configure(options); !status.ok()) return status;
  if (Status status = socket.Bind(bind); !status.ok()) return status;
  return socket;
}

Status UdpSocket::Bind(const Address& bind) {
  const SocketAddress address = ToSocketAddress(bind, family_);
  if (::bind(fd(), address.get(), address.size) != 0) return BindError(bind, errno);
  SocketAddress actual;
  actual.size = sizeof actual.storage;
  if (::getsockname(fd(), actual.get(), &actual.size) != 0) {
    return Status(StatusCode::kInternal, "getsockname failed: " + Reason());
  }
  local_ = FromSocketAddress(actual);
  return Status::Ok();
}

// Before bind, so that no datagram arrives on a half-configured socket.
Status UdpSocket::Configure(const SocketOptions& options) {
  const bool v6 = family_ == AF_INET6;
  if (v6 && !SetInt(fd(), IPPROTO_IPV6, IPV6_V6ONLY, 0)) {
    warnings_.push_back("the IPv6 socket does not receive IPv4: " + Reason());
  }
  // PROBE, not DO: the core finds out itself what the path carries (transport/core/path/dplpmtud.h), and must
  // be able to send more than the kernel believes, which trusts any ICMP message. What the interface cannot
  // carry is still refused. A dual-stack socket needs both families' options.
  bool dont_fragment = SetInt(fd(), IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE);
  if (v6) dont_fragment = SetInt(fd(), IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE) && dont_fragment;
  if (!dont_fragment) return Status(StatusCode::kInternal, "setting don't-fragment failed: " + Reason());

  // Conveniences of newer kernels: without them there are less counters and less speed, nothing else.
  SetInt(fd(), IPPROTO_IP, IP_RECVTOS, 1);
  if (v6) SetInt(fd(), IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
  ecn_capable_ = options.ecn_capable;
  SetInt(fd(), SOL_SOCKET, SO_RXQ_OVFL, 1);
  SetInt(fd(), SOL_SOCKET, SO_TIMESTAMPNS, 1);  // so that a late reader is not taken for a queue of the path
  const bool gso = options.segmentation_offload && GetInt(fd(), SOL_UDP, UDP_SEGMENT) >= 0;
  if (options.segmentation_offload) SetInt(fd(), SOL_UDP, UDP_GRO, 1);

  receive_buffer_ = TuneBuffer(true, options.receive_buffer, options.force_buffers);
  send_buffer_ = TuneBuffer(false, options.send_buffer, options.force_buffers);
  sender_ = std::make_unique<DatagramSender>(fd(), family_, gso, options.calls);
  receiver_ = std::make_unique<DatagramReceiver>(fd());
  return Status::Ok();
}

ByteCount UdpSocket::TuneBuffer(bool receive, ByteCount wanted, bool force) {
  const int option = receive ? SO_RCVBUF : SO_SNDBUF;
  const int forced = receive ? SO_RCVBUFFORCE : SO_SNDBUFFORCE;
  const int bytes = static_cast<int>(std::min<int64_t>(wanted.value(), std::numeric_limits<int>::max() / 2));
  if (!force || !SetInt(fd(), SOL_SOCKET, forced, bytes)) SetInt(fd(), SOL_SOCKET, option, bytes);
  // The kernel doubles what was asked for, to make room for its bookkeeping, and reports the double.
  const ByteCount granted{GetInt(fd(), SOL_SOCKET, option) / 2};
  if (granted < wanted) {
    const std::string name = receive ? "net.core.rmem_max" : "net.core.wmem_max";
    warnings_.push_back(
        std::string("the ") + (receive ? "receive" : "send") + " buffer of the UDP socket is " +
        std::to_string(granted.value()) + " bytes instead of " + std::to_string(wanted.value()) +
        ", datagrams may be dropped on this host; set sysctl " + name + "=" + std::to_string(wanted.value()));
  }
  return granted;
}

}  // namespace longhaul::udp
