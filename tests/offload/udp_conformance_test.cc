// The UDP port: the suite of all ports, with a daemon's loop for each node in threads and as processes,
// sealed, plain, and over a network that loses, repeats and reorders.
#include <map>

#include "tests/offload/port_conformance.h"
#include "tests/offload/udp_support.h"

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
constexpr FaultySender::Faults kGarbage{.garbage = 0.3};

PortUnderTest Threads(const char* name, bool sealed, const FaultySender::Faults& faults,
                      bool offload = true) {
  return {name,
          [=](const SiteOptions& site) {
            return std::make_unique<UdpThreads>(UdpSite::Options{
                .site = site, .sealed = sealed, .faults = faults, .segmentation_offload = offload});
          },
          faults.loss > 0};
}

class Processes : public PortSite {
 public:
  Processes(const SiteOptions& site, bool sealed) : site_(site), processes_({site, sealed}) {
    for (uint8_t node = 0; node < site.nodes; ++node) {
      for (uint8_t rank = 0; rank < site.ranks_per_node; ++rank) {
        devices_.emplace(std::pair(node, rank), processes_.Open(node, rank));
      }
    }
  }
  Device& device(uint8_t node, uint8_t rank) override { return devices_.at({node, rank}); }
  Status OpenAgain(uint8_t node, uint8_t rank) override {
    const ProcessSite& process = processes_.process(node < site_.nodes ? node : 0);
    return Device::Open(process.where(), {node, rank, site_}).status();
  }

 private:
  SiteOptions site_;
  UdpProcesses processes_;
  std::map<std::pair<uint8_t, uint8_t>, Device> devices_;
};

PortUnderTest Programs(const char* name, bool sealed) {
  return {name, [=](const SiteOptions& site) { return std::make_unique<Processes>(site, sealed); }};
}

INSTANTIATE_TEST_SUITE_P(UdpSealed, PortConformance, testing::Values(Threads("sealed", true, {})));
INSTANTIATE_TEST_SUITE_P(UdpPlain, PortConformance, testing::Values(Threads("insecure", false, {})));
INSTANTIATE_TEST_SUITE_P(UdpWithoutOffload, PortConformance,
                         testing::Values(Threads("no UDP_SEGMENT, no UDP_GRO", true, {}, false)));
INSTANTIATE_TEST_SUITE_P(UdpProcess, PortConformance,
                         testing::Values(Programs("longhaul-offload --node", true)));
INSTANTIATE_TEST_SUITE_P(UdpBadNetwork, PortConformance,
                         testing::Values(Threads("bad network", true, kBadNetwork)));
// From the peers' own addresses: what is no packet, or none that they have sent.
INSTANTIATE_TEST_SUITE_P(UdpGarbage, PortConformance,
                         testing::Values(Threads("garbage between", true, kGarbage)));
INSTANTIATE_TEST_SUITE_P(UdpPlainGarbage, PortConformance,
                         testing::Values(Threads("insecure, garbage between", false, kGarbage)));

}  // namespace
}  // namespace longhaul::offload
