// A TUN device in a network namespace: what the site's kernel routes to it is read here as IP packets, and
// what is written here arrives at the site.
#pragma once

#include <cstdint>
#include <string>

#include "base/files.h"
#include "longhaul/status.h"

namespace longhaul::wan {

// What the kernel did behind the back of the link model; zero in a healthy run.
struct TunKernelCounters {
  uint64_t dropped_before_read = 0;  // the site sent faster than the forwarder read: its ring was full
  uint64_t dropped_after_write = 0;  // the site's kernel refused what was written
};

class TunDevice {
 public:
  struct Options {
    std::string device = "/dev/net/tun";
    std::string name = "wan0";
    // The site's address (a.b.c.d as a number), its prefix length and that of the route to all sites.
    uint32_t address = 0;
    int prefix = 24;
    int route_prefix = 16;
    int mtu = 1500;
    // Packets that wait in the kernel for the forwarder, so that a scheduling hiccup is no loss.
    int queue_length = 4000;
  };

  // Makes the device in the namespace of the *calling thread*, gives it its address and routes, sets it and
  // `lo` up. It carries no offload flags, so every read is one packet of at most the MTU.
  static Result<TunDevice> Open(const Options& options);
  // Whether this process may open the device at all; names the step that is refused.
  static Status Probe(const std::string& device);

  int fd() const { return fd_.get(); }
  TunKernelCounters ReadKernelCounters() const;

 private:
  std::string name_;
  FileDescriptor fd_;            // non-blocking
  FileDescriptor proc_net_dev_;  // opened inside the namespace, and so about it
};

}  // namespace longhaul::wan
