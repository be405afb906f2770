#include "transport/core/connection/path.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/inject.h"
#include "base/reached.h"
#include "proto/packet_header.h"
#include "transport/core/connection/connection.h"

namespace longhaul::transport {
namespace {

constexpr auto kOverhead = static_cast<int64_t>(wire::kDataOverheadBytes);

}  // namespace

Path::Path(const Options& options, const Address& peer, Security* security, Random random)
    : options_(options),
      peer_(peer),
      first_peer_(peer),
      candidates_(security, random),
      datagram_bytes_(std::min(options.max_datagram, kLargestInit)),
      ecn_(options.ecn) {}

size_t Path::MaxChunkBytes() const {
  return std::min<size_t>(static_cast<size_t>(datagram_bytes_ - kOverhead) / 16 * 16, kMaxSymbolBytes);
}

void Path::AddTo(ConnectionStats* stats) const {
  stats->migrations = moves_;
  stats->path_candidates = candidates_.counters().candidates;
  stats->path_challenges = candidates_.counters().challenges;
  stats->path_timeouts = candidates_.counters().timed_out;
  stats->path_refused = candidates_.counters().refused;
  stats->mtu_probes_sent = probes_sent_;
  stats->mtu_probes_lost = probes_lost_;
  stats->black_holes = black_holes_;
  stats->ecn_state = EcnValidator::Name(ecn_.state());
  stats->ecn_ce = ecn_.ce();
}

void Path::LimitTo(int64_t bytes) { datagram_bytes_ = std::min(datagram_bytes_, bytes); }

void Path::OnEcho(int64_t bytes) {
  if (bytes < kBaseDatagram || bytes <= largest_echo_) return;
  largest_echo_ = bytes;
  datagram_bytes_ = std::min(bytes, options_.max_datagram);  // a fallback may have been hasty
}

bool Path::OnInitRefused(int64_t bytes) {
  if (datagram_bytes_ <= kBaseDatagram || bytes <= kBaseDatagram) return false;
  refused_bytes_ = bytes;
  datagram_bytes_ = kBaseDatagram;
  return true;
}

void Path::StartSearch(Instant now, int64_t max) {
  const int64_t allowed = std::max(std::min(options_.max_datagram, max), kBaseDatagram);
  pmtu_.Start(now, std::clamp(datagram_bytes_, kBaseDatagram, allowed), allowed);
  if (refused_bytes_ > 0) pmtu_.OnRefused(refused_bytes_, now);
}

void Path::OnProbeSent(wire::PacketNumber number) {
  pmtu_.OnProbeSent(number);
  ++probes_sent_;
}

void Path::SetLongestChunk(size_t bytes) {
  pmtu_.SetNeeded(bytes > 0 ? static_cast<int64_t>(bytes) + kOverhead : 0);
}

Status Path::Check() const {
  if (!pmtu_.failed()) return Status::Ok();
  return Status(StatusCode::kUnavailable, "the path to " + peer_.ToString() +
                                              " has shrunk: it carries datagrams of less than " +
                                              std::to_string(kSmallestDatagram) + " bytes");
}

void Path::OnPacketSent(const SentPacket& packet) {
  if (packet.ect0) ecn_.OnMarkedSent();
}

void Path::TakeFates(LossDetection::Outcome* outcome, Instant now, Duration round_trip,
                     wire::PacketNumber next_number) {
  for (const auto* arrived : {&outcome->spurious, &outcome->acked}) {
    for (const SentPacket& packet : *arrived) {
      if (packet.mtu_probe && LH_INJECT("mtu-probe-lost")) {
        OnLost(packet, now);
        continue;
      }
      pmtu_.OnAcked(packet.number, packet.bytes.value(), now);
      black_hole_.OnPacketAcked(packet.number, packet.bytes.value());
    }
  }
  for (const SentPacket& packet : outcome->lost) OnLost(packet, now);
  if (black_hole_.found(round_trip)) {
    LH_REACHED("the path swallows large datagrams");
    ++black_holes_;
    black_hole_.Reset(next_number);
    pmtu_.OnBlackHole();
  }
  Update();
  for (SentPacket& packet : outcome->lost) {
    packet.outsized = !packet.mtu_probe && packet.bytes.value() > datagram_bytes_;
  }
}

void Path::OnLost(const SentPacket& packet, Instant now) {
  if (packet.ect0 && packet.number >= first_number_) ecn_.OnMarkedLost();
  if (!packet.mtu_probe) {
    black_hole_.OnPacketLost(packet.number, packet.bytes.value(), packet.sent_time);
  } else if (pmtu_.OnProbeLost(packet.number, now)) {
    LH_REACHED("an MTU probe is lost");
    ++probes_lost_;
  }
}

uint64_t Path::OnAck(const wire::AckFrame& ack, const LossDetection::Outcome& outcome, bool newest) {
  const auto marked = [](const SentPacket& packet) { return packet.ect0; };
  const auto count =
      std::ranges::count_if(outcome.acked, marked) + std::ranges::count_if(outcome.spurious, marked);
  return ecn_.OnAck(newest, static_cast<uint64_t>(count), ack.ecn_ect0, ack.ecn_ce);
}

bool Path::IsFromPeer(const Address& from, wire::PacketNumber number, wire::PacketNumber newest) const {
  return from == peer_ || (previous_peer_ == from && number < newest);
}

bool Path::MayOpen(Instant now, const Address& from) {
  return candidates_.IsCandidate(from) || strays_.Has(now);
}

void Path::OnDidNotOpen(Instant now, const Address& from) {
  if (!candidates_.IsCandidate(from)) strays_.Take(now);
}

bool Path::OnCandidate(Instant now, const Address& from, int64_t bytes, ByteSpan frames, Duration pto) {
  candidates_.OnCandidate(now, from, bytes, pto);
  ByteReader reader(frames);
  while (reader.ok() && !reader.AtEnd()) {
    const Result<wire::Frame> frame = wire::DecodeFrame(reader);
    if (!frame.ok()) return false;
    if (const auto* response = std::get_if<wire::PathResponseFrame>(&*frame)) {
      candidates_.OnResponse(from, response->data);
    }
  }
  return true;
}

bool Path::MoveTo(const Address& to, wire::PacketNumber next_number) {
  const bool same_host = to.ip == peer_.ip;
  previous_peer_ = std::exchange(peer_, to);
  candidates_.OnMigrated(to);
  LH_REACHED("a connection moves to another address");
  ++moves_;
  if (same_host) return false;
  first_number_ = next_number;
  ecn_.Restart();
  black_hole_.Reset(next_number);
  pmtu_.Restart();
  return true;
}

void Path::OnTimeout(Instant now) {
  pmtu_.OnTimeout(now);
  candidates_.OnTimeout(now);
}

}  // namespace longhaul::transport
