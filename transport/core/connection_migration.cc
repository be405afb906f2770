// ConnectionImpl and the peer's address: a worker behind a NAT may appear at another one.

#include <utility>

#include "base/check.h"
#include "transport/core/connection_impl.h"

namespace longhaul::transport {
namespace {

RateOptions WithDatagram(RateOptions rate, ByteCount datagram) {
  rate.max_datagram = datagram;
  return rate;
}

}  // namespace

bool ConnectionImpl::TakesCandidates() const {
  const bool allowed = options_.allow_migration.value_or(security_->IsSecure());
  return allowed && !id_.is_client && state_ == State::kConnected;
}

// Until the address is validated nothing in its datagrams counts but the answer to our challenge: they are
// not acknowledged, so what they carry comes again.
ConnectionImpl::ShortFate ConnectionImpl::HandleCandidate(Instant now, const Address& from,
                                                          const wire::ShortHeader& header,
                                                          MutableByteSpan datagram, const ReceiveInfo& info) {
  now_ = now;
  // Whoever has seen our connection ID can send noise with it from any address. It counts here, against this
  // connection alone: by its source address it would count against whoever really is there. An address from
  // which one packet was authentic is opened like the peer's own, so that noise in its name does not keep it
  // from answering the challenge.
  const bool known = paths_.IsCandidate(from);
  if (!known && !strays_.Has(now)) return ShortFate::kLimited;
  const uint64_t bad_tags = stats_.bad_tag_dropped;
  const std::optional<Opened> packet = OpenShort(header, datagram);
  if (!packet) {
    if (!known && stats_.bad_tag_dropped > bad_tags) strays_.Take(now);
    return ShortFate::kHandled;
  }
  if (packet->frames_length() > packet->body.size()) return ShortFate::kHandled;
  paths_.OnCandidate(now, from, static_cast<int64_t>(datagram.size()), Pto());
  ByteReader reader(ByteSpan(packet->body).first(packet->frames_length()));
  while (!reader.AtEnd()) {
    const Result<wire::Frame> frame = wire::DecodeFrame(reader);
    if (!frame.ok()) return ShortFate::kHandled;
    if (const auto* response = std::get_if<wire::PathResponseFrame>(&*frame))
      paths_.OnResponse(from, response->data);
  }
  // Only the newest packet tells where the peer is: older ones may have been delayed, or repeated by
  // somebody.
  if (!paths_.IsValidated(from) || header.packet_number < acks_.largest_plus_one()) {
    ++stats_.candidate_dropped;
    return ShortFate::kHandled;
  }
  Migrate(from);
  TakeShort(now, header.packet_number, *packet, datagram.size(), info);
  return ShortFate::kHandled;
}

void ConnectionImpl::Migrate(const Address& to) {
  const bool same_host = to.ip == id_.peer.ip;
  previous_peer_ = std::exchange(id_.peer, to);
  paths_.OnMigrated(to);
  ++stats_.migrations;
  loss_.ResetPtoBackoff();
  // Another port of the same host is a NAT's doing; the path and all that is known of it is the same (RFC
  // 9000 §9.4).
  if (same_host) return;
  path_first_number_ = next_number_;
  rtt_ = RttEstimator();
  rate_ =
      MakeRateController(WithDatagram(options_.rate, options_.max_datagram), random_.Fork(stats_.migrations));
  rate_->SetGrant(granted_);
  sampler_.OnAppLimited(loss_.bytes_in_flight());  // what is on its way says nothing of this path's capacity
  UpdatePacer(now_);
  ecn_.Restart();
  black_hole_.Reset(next_number_);
  pmtu_.Restart();
  FollowPathMtu();
}

std::optional<Transmit> ConnectionImpl::PollChallenge(Instant now, MutableByteSpan buffer) {
  if (state_ != State::kConnected || buffer.size() < static_cast<size_t>(PathManager::kChallengeBytes)) {
    return std::nullopt;
  }
  const std::optional<PathManager::Challenge> challenge = paths_.NextChallenge(now);
  if (!challenge) return std::nullopt;
  const auto size = static_cast<size_t>(challenge->bytes);
  PacketBuilder builder(buffer.first(size));
  builder.StartShort(id_.remote, next_number_, protection_->key_phase());
  LH_CHECK(builder.Add(wire::PathChallengeFrame{challenge->data}));
  builder.PadTo(size);
  LH_CHECK_OP(builder.Seal(*protection_), ==, size);
  // It goes another path, so its fate says nothing of this one: it only has a number.
  SentPacket sent = builder.TakeSent();
  sent.sent_time = now;
  sent.in_flight = sent.ack_eliciting = false;
  key_update_.OnPacketSent(sent.number, protection_->key_phase(), size, now);
  loss_.OnPacketSent(std::move(sent));
  ++next_number_;
  ++stats_.packets_sent;
  stats_.bytes_sent += size;
  return Transmit{challenge->to, size, size};
}

}  // namespace longhaul::transport
