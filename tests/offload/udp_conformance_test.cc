// The UDP port: the suite of all ports, with a daemon's loop for each node in threads and as processes,
// sealed, plain, and over a network that loses, repeats and reorders.
#include <unistd.h>

#include <map>

#include "tests/offload/port_conformance.h"
#include "tests/offload/udp_support.h"
#include "transport/keys/key_file.h"

namespace longhaul::offload {
namespace {

class UdpThreads : public PortSite {
 public:
  explicit UdpThreads(const UdpSite::Options& options)
      : ranks_(options.site.ranks_per_node), site_(options), devices_(site_.OpenAll()) {}
  Device& device(uint8_t node, uint8_t rank) override { return devices_[size_t{node} * ranks_ + rank]; }
  Status OpenAgain(uint8_t node, uint8_t rank) override { return site_.TryOpen(node, rank); }

 private:
  size_t ranks_;
  UdpSite site_;
  std::vector<Device> devices_;
};

constexpr FaultySender::Faults kBadNetwork{.loss = 0.05, .duplication = 0.05, .reordering = 0.05};

PortUnderTest Threads(const char* name, bool sealed, const FaultySender::Faults& faults,
                      bool offload = true) {
  return {name,
          [=](const SiteOptions& site) {
            return std::make_unique<UdpThreads>(UdpSite::Options{
                .site = site, .sealed = sealed, .faults = faults, .segmentation_offload = offload});
          },
          faults.loss > 0};
}

// A longhaul-offload for each node, at an address of 127/8 that no other process of the tests has.
class UdpProcesses : public PortSite {
 public:
  explicit UdpProcesses(const SiteOptions& site) : site_(site) {
    EXPECT_TRUE(
        keys::WriteKeyFile(folder_.path("key"), "longhaul-psk-v1\njob = test\npsk = " + std::string(64, 'a'))
            .ok());
    const int machines = site.nodes + (site.aggregator ? 1 : 0);
    std::string peers;
    for (int node = 0; node < machines; ++node) {
      peers += (node > 0 ? "," : "") + std::to_string(node) + "=" + AddressOf(node);
    }
    for (int node = 0; node < machines; ++node) {
      processes_.push_back(
          std::make_unique<ProcessSite>(site,
                                        std::vector<std::string>{"--node", std::to_string(node), "--peers",
                                                                 peers, "--key", folder_.path("key")},
                                        node < site.nodes));
    }
    for (uint8_t node = 0; node < site.nodes; ++node) {
      for (uint8_t rank = 0; rank < site.ranks_per_node; ++rank) {
        devices_.emplace(std::pair(node, rank),
                         Device::Open(processes_[node]->where(), {node, rank, site}).value());
      }
    }
  }
  Device& device(uint8_t node, uint8_t rank) override { return devices_.at({node, rank}); }
  Status OpenAgain(uint8_t node, uint8_t rank) override {
    return Device::Open(processes_[node < site_.nodes ? node : 0]->where(), {node, rank, site_}).status();
  }

 private:
  static std::string AddressOf(int node) {
    const int pid = getpid();
    return "127." + std::to_string(16 + pid / 256 % 200) + "." + std::to_string(pid % 256) + "." +
           std::to_string(1 + node) + ":7500";
  }

  SiteOptions site_;
  TemporaryFolder folder_;
  std::vector<std::unique_ptr<ProcessSite>> processes_;
  std::map<std::pair<uint8_t, uint8_t>, Device> devices_;
};

INSTANTIATE_TEST_SUITE_P(UdpSealed, PortConformance, testing::Values(Threads("sealed", true, {})));
INSTANTIATE_TEST_SUITE_P(UdpPlain, PortConformance, testing::Values(Threads("insecure", false, {})));
INSTANTIATE_TEST_SUITE_P(UdpWithoutOffload, PortConformance,
                         testing::Values(Threads("no UDP_SEGMENT, no UDP_GRO", true, {}, false)));
INSTANTIATE_TEST_SUITE_P(UdpProcess, PortConformance,
                         testing::Values(PortUnderTest{
                             "longhaul-offload --node",
                             [](const SiteOptions& site) { return std::make_unique<UdpProcesses>(site); }}));
INSTANTIATE_TEST_SUITE_P(UdpBadNetwork, PortConformance,
                         testing::Values(Threads("bad network", true, kBadNetwork)));

}  // namespace
}  // namespace longhaul::offload
