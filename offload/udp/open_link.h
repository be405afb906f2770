// From the options of longhaul-offload to a node's UDP port: names are looked up, the key is read, the socket
// is opened.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "longhaul/job.h"
#include "longhaul/offload.h"
#include "offload/udp/udp_link.h"

namespace longhaul::offload {

struct UdpChoice {
  uint8_t node = 0;
  std::string peers = {};  // "0=HOST:PORT,1=HOST:PORT": every node of the site; its own is where it listens
  std::string bind = {};   // HOST:PORT; empty: the node's own entry of `peers`
  std::string key_file = {};
  bool insecure = false;
  bool insecure_bind = false;
  Cipher cipher = Cipher::kAny;  // of what it sends; kAny: AES-128-GCM
};

using PeerNames = std::array<std::string, kMaxNodes>;  // by node; empty: none

// Errors: kInvalidArgument names the entry and what is wrong with it: no number, twice, no node of the site.
Result<PeerNames> ParsePeers(std::string_view text, uint32_t nodes);

// Of a receive buffer, as sockets count it: what all other nodes may have on its way to one for a message,
// the root of a tree above all. A ring has one that sends.
ByteCount WindowBytes(const SiteOptions& site, bool sealed);
// A sentence for people when that does not fit what the kernel granted; empty: it does.
std::string WindowWarning(const SiteOptions& site, bool sealed, ByteCount granted);

// Errors: kInvalidArgument (choice, key file, an address that no interface has), kNotFound, kUnavailable (a
// name that is not known, or not now), kPermissionDenied, kAlreadyExists (the port is in use), kInternal.
// With names of options as the library has them: 'key_file'. Asks for a receive buffer of WindowBytes.
Result<std::unique_ptr<UdpLink>> OpenLink(const UdpChoice& choice, const SiteOptions& site);

}  // namespace longhaul::offload
