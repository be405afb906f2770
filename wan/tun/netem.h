// The front for kernels with sch_netem: the same words, carried out by `tc netem` on veth pairs.
//
//   site A            hub namespace (one bridge for each pair of sites)            site B
//   10.77.1.1  wan2 ======= s1p2 [netem B->A]  bridge  s2p1 [netem A->B] ======= wan1  10.77.2.1
//
// The queueing discipline sits at the hub's exits, not at the senders: on a sender's own device it would push
// back into TCP's small-queue logic, which no WAN does.
//
// What netem does differently, so numbers of the two fronts compare only with care:
//   - one counter for both kinds of drops, loss and queue
//   - jitter reorders packets unless a rate is set
//   - the queue bound counts packets, and those in flight too
//   - it cannot do outages and MTU black holes
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "longhaul/status.h"
#include "wan/link_options.h"

namespace longhaul::wan {

// The words after `netem` for one direction, for example
// {"limit", "4334", "delay", "25000us", "loss", "random", "2%", "rate", "200000000bit"}.
// kInvalidArgument names what netem cannot do.
Result<std::vector<std::string>> NetemArguments(const LinkOptions& options);

// A command and the namespace in which it runs.
struct NetemCommand {
  static constexpr int kHub = -1;
  int site = kHub;
  std::vector<std::string> argv;
};

struct NetemSite {
  std::string address;         // "10.77.1.1"
  std::string namespace_path;  // "/run/netns/lh-A-1234"
};

// Everything that turns empty namespaces into the WAN. `links[from * sites + to]`.
Result<std::vector<NetemCommand>> NetemSetup(const std::vector<NetemSite>& sites,
                                             const std::vector<LinkOptions>& links, int mtu);

// The hub's device at whose exit the link from -> to is shaped.
std::string NetemDevice(size_t from, size_t to);

// What `tc -s -j qdisc show dev X` says about netem.
struct NetemCounters {
  uint64_t packets = 0;  // sent on
  uint64_t bytes = 0;
  uint64_t drops = 0;  // by loss and by queue together
};
Result<NetemCounters> ParseNetemCounters(std::string_view json);

// Ok when this kernel can do it: tries `tc qdisc add dev lo root netem` in a namespace that it forgets.
// Otherwise kUnavailable or kPermissionDenied with the reason.
Status ProbeNetem();

}  // namespace longhaul::wan
