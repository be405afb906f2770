// What the network says of a peer that does not answer.
#pragma once

#include <string>

#include "base/address.h"
#include "longhaul/units.h"

namespace longhaul::udp {

// Sends a byte to the peer from a socket of its own, and waits so long at most for what routers and the
// peer's host say of it (ICMP): nothing listens on the port, no way leads there, a firewall forbids it. In
// words; empty when nothing is said. Any host on the path can forge it: a hint for messages, no more.
std::string Probe(const Address& peer, Duration limit);

}  // namespace longhaul::udp
