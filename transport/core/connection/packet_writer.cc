#include "transport/core/connection/packet_writer.h"

#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/reached.h"
#include "transport/core/connection/connection.h"

namespace longhaul::transport {
namespace {

// An ACK of nothing but ACKs would never be acknowledged and its ranges would pile up; so every so many
// ACK-only packets one elicits an acknowledgement (RFC 9000 §13.2.4).
constexpr uint32_t kAckOnlyPerPing = 32;
// Beside a chunk, an ACK is worth adding when it has room for a few ranges.
constexpr size_t kRoomForAck = 64;

}  // namespace

void PacketWriter::Answer(const wire::PathChallengeFrame& challenge) {
  if (path_responses_.size() < kMaxPathResponses) path_responses_.push_back(challenge.data);
}

std::optional<Transmit> PacketWriter::TakePostponed(MutableByteSpan buffer) {
  const size_t size = postponed_.size();
  if (size > buffer.size()) return std::nullopt;
  std::memcpy(buffer.data(), postponed_.data(), size);
  postponed_.clear();
  return Transmit{from_.path->peer(), size, size, ect0_};
}

PacketBuilder PacketWriter::Start(MutableByteSpan out) const {
  PacketBuilder builder(out);
  builder.StartShort(from_.handshaking->remote_id(), from_.flight->next_number(),
                     from_.handshaking->protection()->key_phase());
  return builder;
}

std::optional<Transmit> PacketWriter::PollChallenge(Instant now, MutableByteSpan buffer) {
  if (buffer.size() < static_cast<size_t>(PathManager::kChallengeBytes)) return std::nullopt;
  const std::optional<PathManager::Challenge> challenge = from_.path->NextChallenge(now);
  if (!challenge) return std::nullopt;
  const auto size = static_cast<size_t>(challenge->bytes);
  PacketBuilder builder = Start(buffer.first(size));
  LH_CHECK(builder.Add(wire::PathChallengeFrame{challenge->data}));
  builder.PadTo(size);
  // It goes another path, so its fate says nothing of this one: it only has a number.
  builder.LeaveFlight();
  BeginBatch(false);
  LH_CHECK_OP(Finish(now, &builder), ==, size);
  return Transmit{challenge->to, size, size};
}

void PacketWriter::UpdateKeysIfDue(Instant now) {
  key_changes_.OnPoll(from_.handshaking->protection(), now, from_.flight->Pto());
  if (key_changes_.begun() == from_.stats->key_updates) return;
  LH_REACHED("this side updates the keys");
  from_.stats->key_updates = key_changes_.begun();
}

Status PacketWriter::OnKeyUpdate(const wire::KeyUpdateFrame& frame, Instant now) {
  return key_changes_.OnFrame(from_.handshaking->protection(), from_.handshaking->is_client(), frame, now,
                              from_.flight->Pto());
}

Status PacketWriter::CheckKeys() const {
  const PacketProtection& protection = *from_.handshaking->protection();
  const std::string_view reached = protection.limit_reached();
  if (reached.empty()) return Status::Ok();
  return Status(StatusCode::kAeadLimitReached, "connection with " + from_.path->peer().ToString() + ", " +
                                                   std::string(protection.name()) + ": " +
                                                   std::string(reached));
}

std::optional<Transmit> PacketWriter::PollMtuProbe(Instant now, MutableByteSpan buffer) {
  const std::optional<int64_t> bytes = from_.path->NextProbe();
  if (!bytes || from_.flight->probes_due() > 0) return std::nullopt;
  const auto size = static_cast<size_t>(*bytes);
  if (buffer.size() < size || !from_.flight->MayProbePath(now, size)) return std::nullopt;
  PacketBuilder builder = Start(buffer.first(size));
  LH_CHECK(builder.Add(wire::PingFrame{}));
  builder.PadTo(size);
  from_.path->OnProbeSent(from_.flight->next_number());
  LH_CHECK_OP(Finish(now, &builder, true), ==, size);
  // With a small packet behind it a lost probe is known after a round trip instead of a probe timeout.
  ping_due_ = true;
  return Transmit{from_.path->peer(), size, size, ect0_};
}

bool PacketWriter::HasFrames() const {
  return from_.control->send().HasData() || from_.windows->HasFrames() || ping_due_ ||
         from_.handshaking->confirm_due() || key_changes_.HasFrame() || !path_responses_.empty();
}

size_t PacketWriter::Build(Instant now, MutableByteSpan out) {
  FlightControl& flight = *from_.flight;
  from_.windows->incoming().PromoteRepeats(now);
  const bool probe = flight.probes_due() > 0;
  const bool frames = HasFrames();
  const bool chunk = from_.path->carries_chunks() && from_.windows->HasChunk();
  const int64_t longest = from_.path->datagram_bytes();
  bool may_send = probe || flight.MaySend(now, static_cast<size_t>(longest), frames || chunk);
  // An answer to a challenge is small, rare, and may be all that can bring the flow back.
  may_send = may_send || !path_responses_.empty();
  const bool ack_due = flight.acks().ShouldAck(now);
  if (!may_send && !ack_due) {
    if (!frames && !chunk) flight.OnNothingToSend(now);
    return 0;
  }
  const bool small = flight.NextProbeIsSmall();
  PacketBuilder builder =
      Start(out.first(small ? std::min<size_t>(out.size(), Path::kSmallestDatagram) : out.size()));
  // Frames go first and on their own: small control overtakes bulk. A chunk leaves little room beside it.
  if (ack_due || (may_send && frames)) {
    if (flight.acks().HasPending()) AddAck(now, &builder);
    if (may_send) AddElicitingFrames(now, &builder);
  }
  // Frames may turn out to be of windows that are gone.
  if (!builder.has_content() && may_send && chunk && !(small && longest > Path::kSmallestDatagram)) {
    const auto timestamp_us = static_cast<uint32_t>(now.nanoseconds() / 1000);
    const bool added = from_.windows->AddChunk(flight.path_view(now, longest), timestamp_us, &builder);
    if (added && flight.acks().HasPending() && builder.room() >= kRoomForAck) AddAck(now, &builder);
  }
  if (probe && !builder.ack_eliciting()) LH_CHECK(builder.Add(wire::PingFrame{}));
  if (!builder.has_content()) return 0;
  if (!builder.ack_eliciting() && ++ack_only_sent_ % kAckOnlyPerPing == 0) builder.Add(wire::PingFrame{});
  if (probe) flight.OnProbeBuilt();
  return Finish(now, &builder);
}

void PacketWriter::AddAck(Instant now, PacketBuilder* builder) {
  const wire::AckFrame ack = from_.flight->acks().BuildAck(now);
  if (ack.ranges.empty()) return;
  if (builder->Add(ack)) {
    builder->Remember(SentAck{ack.ranges.front().largest});
  } else {
    from_.flight->acks().RequestImmediateAck();
  }
}

void PacketWriter::AddElicitingFrames(Instant now, PacketBuilder* builder) {
  while (!path_responses_.empty() && builder->Add(wire::PathResponseFrame{path_responses_.front()})) {
    path_responses_.erase(path_responses_.begin());
  }
  if (from_.handshaking->confirm_due() && builder->Add(from_.handshaking->Confirmation())) {
    builder->Remember(SentNewCid{});
    from_.handshaking->SetConfirmDue(false);
  }
  if (key_changes_.HasFrame() && builder->Add(key_changes_.frame())) {
    builder->Remember(SentKeyUpdate{key_changes_.frame().phase});
    key_changes_.OnFrameSent();
  }
  from_.windows->AddFrames(now, builder);
  AddControlData(builder);
  if (ping_due_ && (builder->ack_eliciting() || builder->Add(wire::PingFrame{}))) ping_due_ = false;
}

void PacketWriter::AddControlData(PacketBuilder* builder) {
  // Type, offset and length take at most 17 bytes.
  constexpr size_t kOverhead = 17;
  while (from_.control->send().HasData() && builder->room() > kOverhead + 16) {
    const std::optional<wire::ControlFrame> frame = from_.control->send().Next(builder->room() - kOverhead);
    if (!frame) return;
    LH_CHECK(builder->Add(*frame));
    builder->Remember(SentControl{frame->offset, frame->data.size()});
  }
}

size_t PacketWriter::Finish(Instant now, PacketBuilder* builder, bool mtu_probe) {
  PacketProtection& protection = *from_.handshaking->protection();
  const size_t size = builder->Seal(protection);
  SentPacket sent = builder->TakeSent();
  key_changes_.OnPacketSent(sent.number, protection.key_phase(), size, now);
  sent.mtu_probe = mtu_probe;
  sent.ect0 = ect0_;
  from_.path->OnPacketSent(sent);
  ++from_.stats->packets_sent;
  from_.stats->bytes_sent += size;
  from_.flight->OnPacketSent(std::move(sent), now);
  return size;
}

size_t PacketWriter::BuildClose(const wire::CloseFrame& close, MutableByteSpan out) {
  PacketBuilder builder = Start(out);
  builder.Add(close);
  from_.flight->SkipNumber();
  ++from_.stats->packets_sent;
  const size_t size = builder.Seal(*from_.handshaking->protection());
  from_.stats->bytes_sent += size;
  return size;
}

Result<bool> PacketWriter::OnAck(const wire::AckFrame& ack, Instant now, Instant received) {
  const std::optional<wire::PacketNumber> newest_before = from_.flight->loss().newest_acked();
  Result<LossDetection::Outcome> outcome = from_.flight->OnAckReceived(ack, received);
  if (!outcome.ok()) {
    ++from_.stats->acks_refused;
    return outcome.status();
  }
  const bool newest = from_.flight->loss().newest_acked() != newest_before;
  const uint64_t new_ce = from_.path->OnAck(ack, *outcome, newest);
  return TakeFates(*std::move(outcome), new_ce, ack.host_drops, now);
}

bool PacketWriter::OnTimeout(Instant now) {
  if (from_.flight->LossDeadline() > now) return false;
  return TakeFates(from_.flight->OnTimeout(now), 0, std::nullopt, now);
}

bool PacketWriter::TakeFates(LossDetection::Outcome outcome, uint64_t new_ce,
                             std::optional<uint64_t> host_drops, Instant now) {
  FlightControl& flight = *from_.flight;
  const Duration round_trip = std::max(flight.rtt().smoothed_rtt(), flight.rtt().latest_rtt());
  from_.path->TakeFates(&outcome, now, round_trip, flight.next_number());
  flight.TakeFates(now, outcome, from_.path->datagram_bytes());
  // Every acknowledgement is booked before any loss is acted on: a block that just became complete needs none
  // of its lost symbols again.
  for (const SentPacket& packet : outcome.spurious) OnPacketAcked(packet, now);
  for (const SentPacket& packet : outcome.acked) OnPacketAcked(packet, now);
  for (const SentPacket& packet : outcome.lost) OnPacketLost(packet, now);
  // A probe may as well bring what is missing: that saves the round trip after which the loss is known.
  if (outcome.send_probes) {
    RepeatFrames();
    from_.windows->ProbeWith(flight.loss().UnackedChunks(kMaxProbeChunks), flight.probes_due());
  }
  return flight.Conclude(now, outcome, new_ce, host_drops);
}

void PacketWriter::OnPacketAcked(const SentPacket& packet, Instant now) {
  key_changes_.OnPacketAcked(packet.number, now);
  from_.windows->OnPacketAcked(packet);
  for (const SentFrame& frame : packet.frames) {
    if (const auto* control = std::get_if<SentControl>(&frame)) {
      from_.control->OnAcked(control->offset, control->length);
    } else if (const auto* ack = std::get_if<SentAck>(&frame)) {
      from_.flight->acks().OnAckAcknowledged(ack->largest);
    }
  }
}

void PacketWriter::OnPacketLost(const SentPacket& packet, Instant now) {
  if (packet.chunk) {
    from_.windows->OnPacketLost(packet, from_.flight->path_view(now, from_.path->datagram_bytes()));
  }
  SendAgain(packet.frames);
}

void PacketWriter::SendAgain(const std::vector<SentFrame>& frames) {
  for (const SentFrame& frame : frames) {
    if (const auto* control = std::get_if<SentControl>(&frame)) {
      from_.control->send().OnLost(control->offset, control->length);
    } else if (std::holds_alternative<SentNewCid>(frame)) {
      from_.handshaking->SetConfirmDue(true);
    } else if (const auto* update = std::get_if<SentKeyUpdate>(&frame)) {
      key_changes_.OnFrameLost(update->phase);
    } else {
      from_.windows->SendAgain(frame);
    }
  }
}

}  // namespace longhaul::transport
