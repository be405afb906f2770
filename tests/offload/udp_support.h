// Sites of several machines, on loopback addresses: a daemon's loop in a thread for each node.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "offload/udp/udp_link.h"
#include "tests/offload/shm_support.h"
#include "transport/udp/resolve.h"

namespace longhaul::offload {

// What happens to the datagrams that a node sends: at the system call, so that all above it is the product's.
class FaultySender {
 public:
  struct Faults {
    double loss = 0;
    double duplication = 0;
    double reordering = 0;  // share that leaves up to 20 datagrams later
    size_t keep = 0;        // copies of the first ones that left
    double garbage = 0;     // share after which one more leaves: cut, changed in a bit, or noise
  };
  FaultySender(const Faults& faults, uint64_t seed) : faults_(faults), random_(seed) {}

  udp::SendCalls Calls();
  // Any thread.
  std::vector<std::vector<uint8_t>> kept() const;
  void Set(const Faults& faults);

 private:
  struct Held {
    uint64_t due;  // in datagrams
    udp::SocketAddress to;
    std::vector<uint8_t> bytes;
  };
  // One message of the product: cut like the kernel would.
  void SendMessage(int fd, const msghdr& message);
  std::vector<uint8_t> GarbageOf(std::vector<uint8_t> datagram);
  static void SendOne(int fd, const udp::SocketAddress& to, const std::vector<uint8_t>& bytes);

  mutable std::mutex mutex_;
  Faults faults_;
  Random random_;
  uint64_t count_ = 0;
  std::deque<Held> held_;
  std::vector<std::vector<uint8_t>> kept_;
};

class UdpSite {
 public:
  struct Options {
    SiteOptions site;
    bool sealed = true;
    FaultySender::Faults faults = {};
    uint64_t seed = 1;
    std::optional<uint8_t> node_with_another_key = {};
    bool segmentation_offload = true;
    uint32_t seg_bytes_of_node_1 = 0;  // 0: the site's
    Duration most_silence = std::chrono::seconds(10);
  };
  explicit UdpSite(const Options& options);
  explicit UdpSite(const SiteOptions& site) : UdpSite(Options{.site = site}) {}
  ~UdpSite();

  uint8_t machines() const { return static_cast<uint8_t>(options_.site.nodes + options_.site.aggregator); }
  Device Open(uint8_t node, uint8_t rank) const;
  Status TryOpen(uint8_t node, uint8_t rank) const;
  // All ranks, node after node.
  std::vector<Device> OpenAll() const;
  // Where that node's datagrams go.
  const Address& address(uint8_t node) const { return addresses_[node]; }
  FaultySender& sender(uint8_t node) { return *senders_[node]; }

  // Its ranks' devices end; nothing is sent or received for it any more.
  void Stop(uint8_t node);
  // Another process of that node, at the same address.
  void Start(uint8_t node);
  // REQUIRES: Stop(node).
  UdpCounters counters(uint8_t node) const { return links_[node]->counters(); }
  OffloadStats stats(uint8_t node) const { return stats_[node]; }
  // What a node that has been stopped has logged, in lines.
  const std::string& log(uint8_t node) const { return logs_[node]; }
  void StopAll();

 private:
  SiteOptions SiteOf(uint8_t node) const;
  void OpenLink(uint8_t node, const Address& bind);
  void Run(uint8_t node);
  std::string PathOf(uint8_t node) const { return folder_.path("node" + std::to_string(node) + ".sock"); }

  Options options_;
  TemporaryFolder folder_;
  uint64_t starts_ = 0;
  std::vector<Address> addresses_;
  std::vector<std::unique_ptr<FaultySender>> senders_;
  std::vector<std::shared_ptr<UdpLink>> links_;
  std::vector<std::unique_ptr<SiteDaemon>> daemons_;
  std::vector<OffloadStats> stats_;  // of those that have been stopped
  std::vector<std::string> logs_;
  std::vector<std::thread> threads_;
};

// A longhaul-offload for each node, at addresses of 127/8 that no other process of the tests has.
class UdpProcesses {
 public:
  struct Options {
    SiteOptions site;
    bool sealed = true;
    // What node `at` takes for the address of node `of`; none: the node itself.
    std::function<std::string(uint8_t at, uint8_t of)> seen = {};
  };
  explicit UdpProcesses(const Options& options);
  // HOST:PORT, of a host 1..250.
  static std::string AddressOf(int host);
  // Where that node receives.
  static std::string NodeAddress(uint8_t node) { return AddressOf(1 + node); }
  ProcessSite& process(uint8_t node) { return *processes_[node]; }
  Device Open(uint8_t node, uint8_t rank) const;
  // What --json says once that node has ended in order.
  std::string Json(uint8_t node) const;

 private:
  Options options_;
  TemporaryFolder folder_;
  std::vector<std::unique_ptr<ProcessSite>> processes_;
};

// The job of all nodes, at every device and, where there is one, at the aggregator.
void ConfigureAll(std::vector<Device>& devices, const SiteOptions& site, JobConfig config);

// A socket that sends anything to a node.
class Stranger {
 public:
  Stranger();
  const Address& address() const { return address_; }
  void Send(const Address& to, const std::vector<uint8_t>& datagram);
  // The next datagram to it; empty: none within that time.
  std::vector<uint8_t> Receive(int milliseconds = 2000);

 private:
  FileDescriptor fd_;
  Address address_;
};

}  // namespace longhaul::offload
