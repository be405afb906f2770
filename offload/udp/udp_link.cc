#include "offload/udp/udp_link.h"

#include <utility>

namespace longhaul::offload {
namespace {

// seg_bytes 32 | nodes 8 | ranks of a node 8 | aggregator 8 | 0
uint64_t NumberOf(const SiteOptions& site) {
  return uint64_t{site.seg_bytes} << 32 | uint64_t{site.nodes} << 24 | uint64_t{site.ranks_per_node} << 16 |
         uint64_t{site.aggregator} << 8;
}

std::string TextOf(uint64_t site) {
  return std::to_string(site >> 24 & 255) + " nodes of " + std::to_string(site >> 16 & 255) +
         " ranks (a relay to a server counts)" + ((site >> 8 & 255) != 0 ? ", an aggregator" : "") +
         ", segs of " + std::to_string(site >> 32) + " bytes";
}

}  // namespace

Result<std::unique_ptr<UdpLink>> UdpLink::Open(UdpLinkOptions options) {
  auto socket = udp::UdpSocket::Open(options.bind, options.socket);
  if (!socket.ok()) return socket.status();
  return std::unique_ptr<UdpLink>(new UdpLink(std::move(options), std::move(*socket)));
}

UdpLink::UdpLink(UdpLinkOptions options, udp::UdpSocket socket)
    : options_(std::move(options)),
      socket_(std::move(socket)),
      packet_(kHeaderBytes + options_.site.seg_bytes) {
  if (!options_.seal) return;
  options_.seal->site = NumberOf(options_.site);
  seal_.emplace(*std::exchange(options_.seal, std::nullopt), &counters_);
}

bool UdpLink::Fetch() {
  fetched_ = socket_.Receive();
  return !fetched_.empty();
}

void UdpLink::Deliver(Instant now, Engine& engine) {
  for (const auto& datagram : std::exchange(fetched_, {})) Take(now, datagram, engine);
}

void UdpLink::Take(Instant now, const udp::ReceivedDatagram& datagram, Engine& engine) {
  const uint64_t forged = counters_.forged;
  const auto opened = Open(now, datagram);
  if (!opened) {
    if (counters_.forged != forged) OnForged(datagram.from);
    return;
  }
  OnOpened(*opened);
  if (opened->restarted) engine.NodeRestarted(now, opened->source);
  if (opened->packet.empty()) return;
  // A node speaks for itself; the engine counts what is no packet.
  const auto claimed = SourceOf(opened->packet);
  if (claimed && *claimed != opened->source) {
    ++counters_.unknown_senders;
    return;
  }
  (void)engine.HandlePacket(now, opened->packet);
}

std::optional<DatagramSeal::Opened> UdpLink::Open(Instant now, const udp::ReceivedDatagram& datagram) {
  if (seal_) return seal_->Open(now, datagram.bytes);
  for (uint8_t node = 0; node < kMaxNodes; ++node) {
    if (peers_[node].address != datagram.from) continue;
    ++counters_.opened;
    return DatagramSeal::Opened{node, datagram.bytes, false};
  }
  ++counters_.unknown_senders;
  return std::nullopt;
}

bool UdpLink::Transmit(Instant now, Engine& engine) {
  if (blocked_ && !FlushAll()) return false;
  if (seal_) SendHellos(now);
  for (size_t packets = 0; packets < kMostPackets && !blocked_; ++packets) {
    const auto outgoing = engine.PollTransmit(now, packet_);
    if (!outgoing) {
      FlushAll();
      return false;
    }
    Queue(outgoing->target, ByteSpan(packet_).first(outgoing->bytes));
  }
  return FlushAll();
}

void UdpLink::Queue(uint8_t target, ByteSpan packet) {
  if (target >= kMaxNodes || !peers_[target].address) {
    ++counters_.packets_without_peer;
    return;
  }
  Peer& peer = peers_[target];
  const size_t size = packet.size() + (seal_ ? DatagramSeal::kSealBytes : 0);
  if (!peer.batch.Takes(size)) Flush(peer);
  if (!peer.batch.Takes(size)) {
    ++counters_.packets_dropped;
    return;
  }
  const MutableByteSpan place = peer.batch.Place(size);
  if (seal_ && seal_->Seal(target, packet, place) == 0) return;
  if (!seal_) std::copy(packet.begin(), packet.end(), place.begin());
  peer.batch.Add(size);
}

void UdpLink::SendHellos(Instant now) {
  std::array<uint8_t, DatagramSeal::kHelloBytes> hello;
  uint8_t target = 0;
  while (const size_t bytes = seal_->NextHello(now, &target, hello)) {
    Peer& peer = peers_[target];
    if (!peer.address) continue;
    (void)socket_.Send(*peer.address, ByteSpan(hello).first(bytes), bytes);
    if (peer.called == Instant()) peer.called = now;
    if (!peer.met && now - peer.called > options_.most_silence) {
      Complain(target, "does not answer: is its longhaul-offload there, with the same key?");
    }
  }
}

// One sentence a peer, until a datagram of it opens: its address may be forged.
void UdpLink::Complain(uint8_t node, const std::string& of) {
  Peer& peer = peers_[node];
  if (std::exchange(peer.complained, true)) return;
  Warn("node " + std::to_string(node) + " at " + peer.address->ToString() + " " + of);
}

void UdpLink::OnForged(const Address& from) {
  for (uint8_t node = 0; node < kMaxNodes; ++node) {
    if (peers_[node].address == from && !peers_[node].met) {
      Complain(node, "sends datagrams that do not open (forged): it has another key, or another number");
    }
  }
}

void UdpLink::OnOpened(const DatagramSeal::Opened& opened) {
  Peer& peer = peers_[opened.source];
  peer.met = true;
  peer.complained = false;
  if (!opened.site || *opened.site == NumberOf(options_.site) || opened.site == peer.other_site) return;
  peer.other_site = opened.site;
  Warn("node " + std::to_string(opened.source) + " has " + TextOf(*opened.site) + ", this one " +
       TextOf(NumberOf(options_.site)) + ": all nodes of a site need the same");
}

void UdpLink::Flush(Peer& peer) {
  if (peer.batch.empty()) return;
  const auto sent = socket_.Send(*peer.address, peer.batch.bytes(), peer.batch.segment());
  if (sent.outcome == udp::SendOutcome::kWouldBlock) {
    blocked_ = true;
    peer.batch.Drop(sent.done_bytes);
  } else {
    peer.batch.Drop(peer.batch.bytes().size());
  }
}

bool UdpLink::FlushAll() {
  blocked_ = false;
  for (Peer& peer : peers_) Flush(peer);
  return !blocked_;
}

UdpCounters UdpLink::counters() const {
  UdpCounters all = counters_;
  const udp::SendCounters& sent = socket_.send_counters();
  const udp::ReceiveCounters& received = socket_.receive_counters();
  all.datagrams_sent = sent.datagrams;
  all.bytes_sent = sent.bytes;
  all.send_calls = sent.gso_calls + sent.sendmmsg_calls + sent.sendmsg_calls;
  all.socket_full = sent.would_block;
  all.too_big = sent.too_big;
  all.send_errors = sent.not_permitted + sent.unreachable + sent.other_errors;
  all.datagrams_received = received.datagrams;
  all.bytes_received = received.bytes;
  all.receive_calls = received.calls;
  all.host_drops = received.host_drops;
  return all;
}

}  // namespace longhaul::offload
