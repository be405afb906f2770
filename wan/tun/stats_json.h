// A running WAN's figures as JSON; the names are those of LinkCounters and ForwarderStats.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "wan/tun/tun_wan.h"

namespace longhaul::wan {

struct WanSnapshot {
  std::string tag;
  std::string backend;
  std::string backend_reason;
  uint64_t seed = 0;
  std::vector<RunState::Site> sites;
  std::vector<TunWan::LinkReport> links;
  ForwarderStats forwarder;
  TunKernelCounters kernel;
};

std::string ToJson(const WanSnapshot& snapshot);

}  // namespace longhaul::wan
