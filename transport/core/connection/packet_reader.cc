#include "transport/core/connection/packet_reader.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/reached.h"
#include "transport/core/connection/connection.h"

namespace longhaul::transport {

PacketReader::Verdict PacketReader::Read(Instant now, const Address& from, const wire::ShortHeader& header,
                                         MutableByteSpan datagram, bool may_move, OpenedPacket* packet) {
  if (!to_.path->IsFromPeer(from, header.packet_number, to_.flight->acks().largest_plus_one())) {
    if (!may_move || !to_.path->follows_peer()) return Verdict::kElsewhere;
    return ReadCandidate(now, from, header, datagram, packet);
  }
  if (to_.handshaking->protection() == nullptr) {  // it overtook the handshake, and will come again
    LH_REACHED("a short packet before the keys");
    ++to_.stats->before_keys_dropped;
    return Verdict::kDropped;
  }
  return Open(header, datagram, packet) == Opening::kOpened ? Verdict::kOpened : Verdict::kDropped;
}

PacketReader::Verdict PacketReader::ReadCandidate(Instant now, const Address& from,
                                                  const wire::ShortHeader& header, MutableByteSpan datagram,
                                                  OpenedPacket* packet) {
  if (!to_.path->MayOpen(now, from)) return Verdict::kLimited;
  const Opening opening = Open(header, datagram, packet);
  if (opening == Opening::kNotAuthentic) to_.path->OnDidNotOpen(now, from);
  if (opening != Opening::kOpened || !packet->IsWhole()) return Verdict::kDropped;
  const auto bytes = static_cast<int64_t>(datagram.size());
  if (!to_.path->OnCandidate(now, from, bytes, packet->frames(), to_.flight->Pto())) return Verdict::kDropped;
  // Only the newest packet tells where the peer is: older ones may have been delayed, or repeated on the way.
  if (!to_.path->IsValidated(from) || packet->number < to_.flight->acks().largest_plus_one()) {
    LH_REACHED("a packet only makes an address a candidate");
    ++to_.stats->candidate_dropped;
    return Verdict::kDropped;
  }
  to_.flight->ResetPtoBackoff();
  if (to_.path->MoveTo(from, to_.flight->next_number())) to_.flight->OnNewPath(now, to_.path->moves());
  return Verdict::kMoved;
}

PacketReader::Opening PacketReader::Open(const wire::ShortHeader& header, MutableByteSpan datagram,
                                         OpenedPacket* packet) {
  if (to_.flight->acks().IsDuplicate(header.packet_number)) {
    LH_REACHED("a packet number comes twice");
    ++to_.stats->duplicates_dropped;
    return Opening::kDropped;
  }
  packet->number = header.packet_number;
  size_t header_bytes = wire::kShortHeaderBytes;
  if (header.has_data) {
    ByteReader reader(datagram.subspan(std::min(datagram.size(), header_bytes)));
    packet->data = wire::DecodeDataHeader(reader);
    header_bytes += wire::kDataHeaderBytes;
  }
  const bool malformed = header.has_data && !packet->data;
  if (malformed || datagram.size() < header_bytes + wire::kTagBytes) {
    ++to_.stats->malformed_dropped;
    return Opening::kDropped;
  }
  packet->body = datagram.subspan(header_bytes, datagram.size() - header_bytes - wire::kTagBytes);
  if (to_.handshaking->protection()->Open(header.packet_number, 0, datagram.first(header_bytes), packet->body,
                                          datagram.last(wire::kTagBytes))) {
    return Opening::kOpened;
  }
  LH_REACHED("a short packet does not open");
  ++to_.stats->bad_tag_dropped;
  return Opening::kNotAuthentic;
}

struct PacketReader::FrameHandler {
  const Owners& to;
  Instant now;
  Instant received;
  wire::PacketNumber number;
  Outcome* outcome;

  Status operator()(const wire::PaddingFrame&) { return Status::Ok(); }
  Status operator()(const wire::PathResponseFrame&) { return Status::Ok(); }
  Status operator()(const wire::ControlFrame& f) { return to.control->OnFrame(f); }
  Status operator()(const wire::WindowOpenFrame& f) { return to.windows->OnOpen(f); }
  Status operator()(const wire::NewCidFrame& f) { return to.handshaking->OnConfirmation(f); }
  Status operator()(const wire::KeyUpdateFrame& f) { return to.writer->OnKeyUpdate(f, now); }
  Status operator()(const wire::TransportParametersFrame&) { return OnlyInHandshake("TRANSPORT_PARAMETERS"); }
  Status operator()(const wire::CryptoFrame&) { return OnlyInHandshake("CRYPTO"); }
  Status operator()(const wire::AckFrame& f) {
    const Result<bool> fates = to.writer->OnAck(f, now, received);
    outcome->fates = outcome->fates || (fates.ok() && *fates);
    return fates.ok() ? Status::Ok() : fates.status();
  }
  Status operator()(const wire::PingFrame&) {
    to.flight->acks().RequestImmediateAck();  // a probe wants to know now
    return Status::Ok();
  }
  Status operator()(const wire::WindowStatusFrame& f) {
    to.windows->OnStatus(f);
    return Status::Ok();
  }
  Status operator()(const wire::WindowCloseFrame& f) {
    to.windows->OnClose(f);
    return Status::Ok();
  }
  Status operator()(const wire::WindowNackFrame& f) {
    to.windows->OnNack(f, now, to.flight->rtt().smoothed_rtt());
    return Status::Ok();
  }
  Status operator()(const wire::GrantFrame& f) {
    to.flight->OnGrant(f, number, now);
    return Status::Ok();
  }
  Status operator()(const wire::PathChallengeFrame& f) {
    to.writer->Answer(f);
    return Status::Ok();
  }
  Status operator()(const wire::CloseFrame& f) {
    outcome->close = f;
    return Status::Ok();
  }
  static Status OnlyInHandshake(std::string_view name) {
    return Status(StatusCode::kProtocolViolation, std::string(name) + " outside of the handshake");
  }
};

PacketReader::Outcome PacketReader::Take(Instant now, const OpenedPacket& packet, bool closing,
                                         const ReceiveInfo& info) {
  Outcome outcome;
  const auto violation = [&outcome](std::string what) {
    outcome.status = Status(StatusCode::kProtocolViolation, std::move(what));
    return outcome;
  };
  const Instant received = info.ArrivedBy(now);
  bool eliciting = packet.data.has_value();
  ByteReader frames(packet.frames());
  while (frames.ok() && !frames.AtEnd() && !outcome.close) {
    const Result<wire::Frame> frame = wire::DecodeFrame(frames);
    if (!frame.ok()) return violation(frame.status().message());
    eliciting = eliciting || wire::IsAckEliciting(*frame);
    if (closing && !std::holds_alternative<wire::CloseFrame>(*frame)) continue;
    outcome.status = std::visit(FrameHandler{to_, now, received, packet.number, &outcome}, *frame);
    // Once is enough: the CLOSE that answers ours must be heard.
    if (outcome.status.ok() && !closing) outcome.status = to_.events->Check();
    if (!outcome.status.ok()) return outcome;
  }
  if (closing || outcome.close) return outcome;
  if (packet.data) {
    const Windows::ChunkFate fate = to_.windows->OnChunk(*packet.data, packet.chunk());
    if (fate == Windows::ChunkFate::kNoRoom) return outcome;  // not acknowledged: it comes again
    if (fate == Windows::ChunkFate::kInvalid) {
      return violation("chunk outside of window " + std::to_string(packet.data->window_id));
    }
    outcome.status = to_.events->Check();
  }
  if (outcome.status.ok()) Account(now, packet, eliciting, info);
  return outcome;
}

void PacketReader::Account(Instant now, const OpenedPacket& packet, bool ack_eliciting,
                           const ReceiveInfo& info) {
  // What this host adds by being busy for a while is neither the path's delay nor a queue on it.
  host_delay_.OnPacket(now, info.ArrivedBy(now));
  const Instant received = host_delay_.arrival();
  AckTracker& acks = to_.flight->acks();
  if (!host_drops_before_) host_drops_before_ = info.host_drops;
  acks.SetHostDrops(info.host_drops - std::min(info.host_drops, *host_drops_before_));
  acks.OnPacketReceived(packet.number, ack_eliciting, info.ecn_ce, received);
  if (info.ecn_ect0) acks.CountEct0();
  if (!packet.data) return;
  incoming_queue_.OnPacket(received, packet.data->timestamp_us, to_.flight->rtt().smoothed_rtt());
  if (packet.data->last_of_window) acks.RequestImmediateAck();
}

}  // namespace longhaul::transport
