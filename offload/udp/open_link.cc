#include "offload/udp/open_link.h"

#include <algorithm>
#include <bit>
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

namespace {

// Half of what the kernel charges for a datagram in a socket that does not merge them: its bytes, headers and
// 320 bytes of bookkeeping in a power of two, and 256 beside it (measured on Linux 6.18: 1280 for 208 bytes,
// 2304 for 1124, 8456 for 4200, 16644 for 8336). Half, since the kernel doubles what a socket asks for.
uint64_t ChargeOf(const SiteOptions& site, bool sealed) {
  const size_t size = kHeaderBytes + site.seg_bytes + (sealed ? DatagramSeal::kSealBytes : 0);
  return (std::bit_ceil(size + 448) + 256) / 2;
}

}  // namespace

ByteCount WindowBytes(const SiteOptions& site, bool sealed) {
  return ByteCount(static_cast<int64_t>(site.window_segs * ChargeOf(site, sealed) * (DeviceCount(site) - 1)));
}

std::string WindowWarning(const SiteOptions& site, bool sealed, ByteCount granted) {
  const ByteCount wanted = WindowBytes(site, sealed);
  if (granted >= wanted) return {};
  const uint32_t others = DeviceCount(site) - 1;
  const uint64_t charge = ChargeOf(site, sealed);
  const auto fits = static_cast<uint64_t>(granted.value()) / (charge * others);
  return "a message may need " + std::to_string(wanted.value()) +
         " bytes of the UDP port's receive buffer (" + std::to_string(site.window_segs) + " segs of " +
         std::to_string(others) + " nodes, " + std::to_string(charge) + " bytes each), which has " +
         std::to_string(granted.value()) +
         ": what does not fit is lost (host_drops) and waits for a timer; set sysctl net.core.rmem_max=" +
         std::to_string(wanted.value()) + " or give --window-segs " +
         std::to_string(std::max<uint64_t>(1, fits));
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
  udp::SocketOptions socket;
  socket.receive_buffer = std::max(socket.receive_buffer, WindowBytes(site, seal->has_value()));
  auto link = UdpLink::Open(
      {.node = choice.node, .bind = *bind, .site = site, .seal = *std::move(seal), .socket = socket});
  if (!link.ok()) return link.status();
  if (Status fine = SetPeers(*names, site, *bind, link->get()); !fine.ok()) return fine;
  return link;
}

}  // namespace longhaul::offload
