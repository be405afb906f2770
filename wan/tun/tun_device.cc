#include "wan/tun/tun_device.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/route.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <sstream>

#include "wan/tun/process.h"

namespace longhaul::wan {
namespace {

ifreq Request(const std::string& name) {
  ifreq request{};
  name.copy(request.ifr_name, IFNAMSIZ - 1);
  return request;
}

sockaddr Ipv4(uint32_t address) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = htonl(address);
  sockaddr out{};
  std::memcpy(&out, &in, sizeof in);
  return out;
}

uint32_t Mask(int prefix) { return prefix == 0 ? 0 : ~uint32_t{0} << (32 - prefix); }

// Interface settings through one control socket; the first refusal is kept and ends the chain.
class Configurator {
 public:
  Configurator() : socket_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    if (!socket_.valid()) status_ = OsError("opening a control socket", errno);
  }
  void Apply(unsigned long what, void* argument, const std::string& step) {
    if (status_.ok() && ioctl(socket_.get(), what, argument) != 0) status_ = OsError(step, errno);
  }
  void SetUp(const std::string& name) {
    ifreq request = Request(name);
    Apply(SIOCGIFFLAGS, &request, "reading the flags of " + name);
    request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
    Apply(SIOCSIFFLAGS, &request, "setting " + name + " up");
  }
  const Status& status() const { return status_; }

 private:
  FileDescriptor socket_;
  Status status_;
};

// By netlink, since the ioctl asks for rights outside a user namespace.
Status SetQueueLength(const std::string& name, int packets) {
  struct {
    nlmsghdr header;
    ifinfomsg link;
    rtattr attribute;
    uint32_t value;
  } message{};
  message.header = {.nlmsg_len = sizeof message,
                    .nlmsg_type = RTM_NEWLINK,
                    .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK,
                    .nlmsg_seq = 1,
                    .nlmsg_pid = 0};
  message.link.ifi_index = static_cast<int>(if_nametoindex(name.c_str()));
  message.attribute = {.rta_len = RTA_LENGTH(sizeof message.value), .rta_type = IFLA_TXQLEN};
  message.value = static_cast<uint32_t>(packets);
  const FileDescriptor fd(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  struct {
    nlmsghdr header;
    nlmsgerr error;
    char rest[256];
  } answer{};
  const std::string step = "setting the queue length of " + name;
  if (!fd.valid() || send(fd.get(), &message, sizeof message, 0) < 0 ||
      recv(fd.get(), &answer, sizeof answer, 0) < 0) {
    return OsError(step, errno);
  }
  return answer.error.error == 0 ? Status::Ok() : OsError(step, -answer.error.error);
}

Status Configure(const TunDevice::Options& options) {
  Configurator configurator;
  configurator.SetUp("lo");
  ifreq request = Request(options.name);
  request.ifr_mtu = options.mtu;
  configurator.Apply(SIOCSIFMTU, &request, "setting the MTU of " + options.name);
  request.ifr_addr = Ipv4(options.address);
  configurator.Apply(SIOCSIFADDR, &request, "setting the address of " + options.name);
  request.ifr_netmask = Ipv4(Mask(options.prefix));
  configurator.Apply(SIOCSIFNETMASK, &request, "setting the netmask of " + options.name);
  configurator.SetUp(options.name);

  std::string device = options.name;
  rtentry route{};
  route.rt_dst = Ipv4(options.address & Mask(options.route_prefix));
  route.rt_genmask = Ipv4(Mask(options.route_prefix));
  route.rt_flags = RTF_UP;
  route.rt_dev = device.data();
  configurator.Apply(SIOCADDRT, &route, "adding the route to the other sites");
  return configurator.status();
}

// Otherwise the kernel's neighbour and router discovery would be counted as traffic of the site.
void DisableIpv6() {
  const FileDescriptor file(open("/proc/sys/net/ipv6/conf/all/disable_ipv6", O_WRONLY | O_CLOEXEC));
  if (file.valid()) (void)!write(file.get(), "1", 1);
}

}  // namespace

Status TunDevice::Probe(const std::string& device) {
  const FileDescriptor fd(open(device.c_str(), O_RDWR | O_CLOEXEC));
  return fd.valid() ? Status::Ok() : OsError("opening " + device, errno);
}

Result<TunDevice> TunDevice::Open(const Options& options) {
  DisableIpv6();
  TunDevice out;
  out.name_ = options.name;
  out.fd_.Reset(open(options.device.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!out.fd_.valid()) return OsError("opening " + options.device, errno);
  ifreq request = Request(options.name);
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (ioctl(out.fd_.get(), TUNSETIFF, &request) != 0) {
    return OsError("making the device " + options.name + " (TUNSETIFF)", errno);
  }
  if (Status s = Configure(options); !s.ok()) return s;
  if (Status s = SetQueueLength(options.name, options.queue_length); !s.ok()) return s;
  out.proc_net_dev_.Reset(open("/proc/thread-self/net/dev", O_RDONLY | O_CLOEXEC));
  return out;
}

TunKernelCounters TunDevice::ReadKernelCounters() const {
  TunKernelCounters counters;
  char text[8192];
  const ssize_t size = pread(proc_net_dev_.get(), text, sizeof text, 0);
  if (size <= 0) return counters;
  std::istringstream lines(std::string(text, static_cast<size_t>(size)));
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.find(name_) > colon) continue;
    // rx: bytes packets errs drop fifo frame compressed multicast; tx: bytes packets errs drop ...
    std::istringstream fields(line.substr(colon + 1));
    uint64_t values[12] = {};
    for (uint64_t& value : values) fields >> value;
    counters.dropped_after_write = values[2] + values[3];
    counters.dropped_before_read = values[10] + values[11];
  }
  return counters;
}

}  // namespace longhaul::wan
