#include "offload/udp/open_link.h"

#include <charconv>
#include <utility>

#include "offload/port/site_engines.h"
#include "transport/keys/load_security.h"
#include "transport/udp/clock.h"
#include "transport/udp/resolve.h"

namespace longhaul::offload {
namespace {

Status Invalid(std::string text) { return {StatusCode::kInvalidArgument, std::move(text)}; }

crypto::AeadSuite SuiteOf(Cipher cipher) {
  switch (cipher) {
    case Cipher::kAes256Gcm:
      return crypto::AeadSuite::kAes256Gcm;
    case Cipher::kChaCha20Poly1305:
      return crypto::AeadSuite::kChaCha20Poly1305;
    default:
      return crypto::AeadSuite::kAes128Gcm;
  }
}

// What is readable and forgeable by everyone on its way stays on this machine unless insecure_bind is given.
Status CheckInsecure(const UdpChoice& choice, const Address& bind) {
  if (!choice.insecure || choice.insecure_bind || bind.IsLoopback()) return {};
  return Invalid(
      "without a key engines talk over loopback addresses only, and " + bind.ToString() +
      " is none: give 'key_file' (longhaul keygen), or say 'insecure_bind' if everyone who can reach "
      "that address may read and change the sums");
}

Result<Address> AddressToBind(const UdpChoice& choice, const PeerNames& names) {
  const std::string& text = choice.bind.empty() ? names[choice.node] : choice.bind;
  if (text.empty()) {
    return Invalid("where does node " + std::to_string(choice.node) +
                   " listen? --bind says it, or its own entry in --peers");
  }
  auto address = udp::ResolveListen(text);
  if (!address.ok()) return address.status();
  if (Status fine = CheckInsecure(choice, *address); !fine.ok()) return fine;
  return address;
}

Status SetPeers(const PeerNames& names, const SiteOptions& site, const Address& bind, UdpLink* link) {
  const auto nodes = static_cast<uint8_t>(DeviceCount(site));
  for (uint8_t node = 0; node < nodes; ++node) {
    if (node == link->node()) continue;
    if (names[node].empty())
      return Invalid("--peers does not say where node " + std::to_string(node) + " is");
    auto address = udp::ResolvePeer(names[node]);
    if (!address.ok()) return address.status();
    if (bind.IsV4() && !address->IsV4()) {
      return Invalid("node " + std::to_string(node) + " is at " + address->ToString() +
                     ", which an IPv4 port does not reach: bind to [::] or an IPv6 address");
    }
    link->SetPeer(node, *address);
  }
  return {};
}

Result<std::optional<SealOptions>> SealOf(const UdpChoice& choice, const SiteOptions& site) {
  auto root =
      keys::LoadPskRoot({.key_file = choice.key_file, .insecure = choice.insecure, .cipher = choice.cipher});
  if (!root.ok()) return Invalid(root.status().message());
  if (root->empty()) return std::optional<SealOptions>();
  SealOptions seal;
  seal.root = *std::move(root);
  seal.cipher = SuiteOf(choice.cipher);
  seal.node = choice.node;
  seal.nodes = (uint64_t{1} << DeviceCount(site)) - 1;
  seal.start = StartNumber();
  seal.salt = udp::EntropySeed();
  return std::optional(std::move(seal));
}

}  // namespace

Result<PeerNames> ParsePeers(std::string_view text, uint32_t nodes) {
  PeerNames names;
  while (!text.empty()) {
    const std::string_view entry = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), entry.size() + 1));
    const std::string quoted = "--peers: '" + std::string(entry) + "'";
    const size_t equals = entry.find('=');
    uint32_t node = 0;
    const char* const end = entry.data() + std::min(equals, entry.size());
    const auto number = std::from_chars(entry.data(), end, node);
    if (equals == std::string_view::npos || number.ec != std::errc() || number.ptr != end ||
        equals + 1 == entry.size()) {
      return Invalid(quoted + " is not NODE=HOST:PORT, for example 1=10.0.0.2:7500");
    }
    if (node >= nodes || node >= kMaxNodes) {
      return Invalid(quoted + ": the site's nodes are 0.." + std::to_string(nodes - 1));
    }
    if (!names[node].empty()) return Invalid(quoted + ": that node is named twice");
    names[node] = entry.substr(equals + 1);
  }
  return names;
}

Result<std::unique_ptr<UdpLink>> OpenLink(const UdpChoice& choice, const SiteOptions& site) {
  if (choice.node >= DeviceCount(site) || choice.node >= kMaxNodes) {
    return Invalid("--node " + std::to_string(choice.node) + ": the site's nodes are 0.." +
                   std::to_string(DeviceCount(site) - 1));
  }
  auto names = ParsePeers(choice.peers, DeviceCount(site));
  if (!names.ok()) return names.status();
  auto bind = AddressToBind(choice, *names);
  if (!bind.ok()) return bind.status();
  auto seal = SealOf(choice, site);
  if (!seal.ok()) return seal.status();
  auto link = UdpLink::Open({.node = choice.node,
                             .bind = *bind,
                             .packet_bytes = kHeaderBytes + site.seg_bytes,
                             .seal = *std::move(seal)});
  if (!link.ok()) return link.status();
  if (Status fine = SetPeers(*names, site, *bind, link->get()); !fine.ok()) return fine;
  return link;
}

}  // namespace longhaul::offload
