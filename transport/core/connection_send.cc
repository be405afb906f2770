// The sending side of ConnectionImpl: what goes into the next datagram.

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "transport/core/connection_impl.h"

namespace longhaul::transport {
namespace {

// An ACK of nothing but ACKs would never be acknowledged and its ranges would pile up; so every so many
// ACK-only packets one elicits an acknowledgement (RFC 9000 §13.2.4).
constexpr uint32_t kAckOnlyPerPing = 32;
// One GSO send carries at most this many segments (the kernel allows 128).
constexpr int kMaxSegments = 64;
// A CLOSE is repeated at least this much later, so that a short RTT does not burn all copies in one burst.
constexpr Duration kMinCloseGap = std::chrono::milliseconds(20);
constexpr Duration kMaxCloseGap = std::chrono::milliseconds(500);

}  // namespace

std::optional<Transmit> ConnectionImpl::PollTransmit(Instant now, MutableByteSpan buffer) {
  now_ = now;
  if (state_ == State::kClosed) return std::nullopt;
  if (!held_.empty()) {
    if (held_.size() > buffer.size()) return std::nullopt;
    std::memcpy(buffer.data(), held_.data(), held_.size());
    const Transmit transmit{id_.peer, held_.size(), held_.size(), batch_ect0_};
    held_.clear();
    return transmit;
  }
  batch_ect0_ = false;
  if (std::optional<Transmit> challenge = PollChallenge(now, buffer)) return challenge;
  batch_ect0_ = state_ == State::kConnected && ecn_.marks();
  if (outgoing_.TakeStarted()) {
    rate_->OnWindowStart(now);
    UpdatePacer(now);
  }
  blocked_by_pacer_ = false;
  UpdateKeysIfDue(now);
  if (std::optional<Transmit> probe = PollMtuProbe(now, buffer)) return probe;
  Transmit transmit{id_.peer, 0, 0, batch_ect0_};
  for (int segments = 0; segments < kMaxSegments; ++segments) {
    const size_t limit = std::min(static_cast<size_t>(datagram_bytes_), buffer.size() - transmit.size);
    // What is left of the buffer after other segments must hold a whole datagram: a chunk is not cut.
    const auto needed =
        static_cast<size_t>(segments > 0 ? datagram_bytes_ : std::min(kBaseDatagram, datagram_bytes_));
    if (limit < needed) break;
    const MutableByteSpan out = buffer.subspan(transmit.size, limit);
    const size_t size = BuildDatagram(now, out);
    if (size == 0) break;
    if (transmit.segment_bytes == 0) transmit.segment_bytes = size;
    if (size > transmit.segment_bytes) {  // only the last segment may differ, and only be shorter
      held_.assign(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(size));
      break;
    }
    transmit.size += size;
    if (size < transmit.segment_bytes) break;
  }
  if (transmit.size == 0) return std::nullopt;
  return transmit;
}

void ConnectionImpl::UpdateKeysIfDue(Instant now) {
  if (state_ != State::kConnected || !protection_->IsSecure()) return;
  if (!key_update_.Due(protection_->key_phase(), now)) return;
  protection_->UpdateKeys();
  ++stats_.key_updates;
}

void ConnectionImpl::EndAtAeadLimit() {
  if (state_ != State::kConnected) return;
  const std::string_view reached = protection_->limit_reached();
  if (reached.empty()) return;
  Close(Status(StatusCode::kAeadLimitReached, "connection with " + id_.peer.ToString() + ", " +
                                                  std::string(protection_->name()) + ": " +
                                                  std::string(reached)));
}

size_t ConnectionImpl::BuildDatagram(Instant now, MutableByteSpan out) {
  EndAtAeadLimit();
  switch (state_) {
    case State::kConnecting:
      return BuildLong(now, out);
    case State::kConnected:
      return BuildShort(now, out);
    case State::kClosing: {
      if (closes_left_ == 0 || now < next_close_) return 0;
      --closes_left_;
      next_close_ = now + std::clamp(Pto(), kMinCloseGap, kMaxCloseGap);
      return BuildClose(out);
    }
    case State::kClosed:
      break;
  }
  return 0;
}

bool ConnectionImpl::HasFrames() const {
  return control_tx_.HasData() || outgoing_.HasPendingFrame() || incoming_.HasPendingClose() ||
         incoming_.HasPendingNack() || grant_to_send_.has_value() || ping_due_ || confirm_due_ ||
         !path_responses_.empty();
}

bool ConnectionImpl::WindowAllows(size_t bytes) const {
  const ByteCount after = loss_.bytes_in_flight() + ByteCount(static_cast<int64_t>(bytes));
  if (!loss_.CanSend()) return false;
  // One datagram is always allowed: a window smaller than that must not stop the flow.
  if (static_cast<uint64_t>(after.value()) > peer_receive_window_ && loss_.bytes_in_flight().value() > 0)
    return false;
  // The last datagram may overshoot: a window smaller than one datagram must not stop the flow.
  return loss_.bytes_in_flight() < rate_->cwnd();
}

std::optional<RateLimiter> ConnectionImpl::Limiter(bool has_data, bool window_allows,
                                                   bool pacer_allows) const {
  if (!has_data) return RateLimiter::kApp;
  if (!window_allows) {
    const bool congestion = loss_.bytes_in_flight() >= rate_->cwnd() || !loss_.CanSend();
    return congestion ? RateLimiter::kCwnd : RateLimiter::kReceiveWindow;
  }
  return pacer_allows ? std::nullopt : std::optional(rate_->rate_bound());
}

void ConnectionImpl::SetLimiter(Instant now, std::optional<RateLimiter> limiter) {
  if (limiter_) stats_.limited[static_cast<size_t>(*limiter_)] += now - limited_since_;
  limiter_ = limiter;
  limited_since_ = now;
}

size_t ConnectionImpl::BuildShort(Instant now, MutableByteSpan out) {
  incoming_.PromoteRepeats(now);
  const bool probe = probes_due_ > 0;
  const bool frames = HasFrames();
  const bool chunk = outgoing_.HasChunk();
  bool may_send = probe;
  if (!probe) {
    const bool has_data = frames || chunk;
    if (has_data && pacer_.Stalled(now)) sampler_.OnAppLimited(loss_.bytes_in_flight());
    const bool window_allows = has_data && WindowAllows(static_cast<size_t>(datagram_bytes_));
    const bool pacer_allows = has_data && pacer_.Credit(now) > ByteCount(0);
    blocked_by_pacer_ = window_allows && !pacer_allows;
    if (!window_allows) pacer_.OnBlockedElsewhere(now);
    may_send = window_allows && pacer_allows;
    SetLimiter(now, Limiter(has_data, window_allows, pacer_allows));
  }
  // An answer to a challenge is small, rare, and may be all that can bring the flow back.
  may_send = may_send || !path_responses_.empty();
  const bool ack_due = acks_.ShouldAck(now);
  if (!may_send && !ack_due) {
    if (!frames && !chunk) {
      sampler_.OnAppLimited(loss_.bytes_in_flight());
      pacer_.OnBlockedElsewhere(now);
    }
    return 0;
  }
  // From the second timeout on the second of two probes is one that every path carries: were they all large,
  // a path that swallows large ones would be silent instead of telling.
  const bool small = probe && probes_due_ == 1 && loss_.pto_count() >= 2;
  PacketBuilder builder(out.first(small ? std::min<size_t>(out.size(), kBaseDatagram) : out.size()));
  builder.StartShort(id_.remote, next_number_, protection_->key_phase());
  // Frames go first and on their own: small control overtakes bulk. A chunk leaves little room beside it.
  if (ack_due || (may_send && frames)) {
    if (acks_.HasPending()) AddAck(now, &builder);
    if (may_send) AddElicitingFrames(now, &builder);
  } else if (chunk && !(small && datagram_bytes_ > kBaseDatagram)) {
    std::optional<WindowTx::Item> item = outgoing_.NextChunk(path_view());
    if (item) {
      if (item->header.repair) {
        ++stats_.repair_sent;
      } else if (item->header.retransmission) {
        ++stats_.retransmissions;
      } else {
        stats_.chunk_bytes_sent += item->size();
      }
      builder.SetChunk(*item, static_cast<uint32_t>(now.nanoseconds() / 1000));
      if (acks_.HasPending() && builder.room() >= 64) AddAck(now, &builder);
    }
  }
  if (probe && !builder.ack_eliciting()) LH_CHECK(builder.Add(wire::PingFrame{}));
  if (!builder.has_content()) return 0;
  if (!builder.ack_eliciting() && ++ack_only_sent_ % kAckOnlyPerPing == 0) builder.Add(wire::PingFrame{});
  if (probe) --probes_due_;
  return Finish(now, &builder);
}

void ConnectionImpl::AddAck(Instant now, PacketBuilder* builder) {
  const wire::AckFrame ack = acks_.BuildAck(now);
  if (ack.ranges.empty()) return;
  if (builder->Add(ack)) {
    builder->Remember({wire::FrameType::kAck, ack.ranges.front().largest, 0});
  } else {
    acks_.RequestImmediateAck();
  }
}

void ConnectionImpl::AddElicitingFrames(Instant now, PacketBuilder* builder) {
  while (!path_responses_.empty() && builder->Add(wire::PathResponseFrame{path_responses_.front()})) {
    path_responses_.erase(path_responses_.begin());
  }
  if (confirm_due_ && builder->Add(wire::NewCidFrame{security_->ResetToken(id_.local)})) {
    builder->Remember({wire::FrameType::kNewCid, 0, 0});
    confirm_due_ = false;
  }
  if (grant_to_send_ && builder->Add(*grant_to_send_)) {
    builder->Remember({wire::FrameType::kGrant, 0, 0});
    grant_to_send_.reset();
  }
  AddWindowFrames(now, builder);
  AddControlData(builder);
  if (ping_due_ && (builder->ack_eliciting() || builder->Add(wire::PingFrame{}))) ping_due_ = false;
}

void ConnectionImpl::AddWindowFrames(Instant now, PacketBuilder* builder) {
  while (const std::optional<wire::WindowCloseFrame> close = incoming_.PeekClose()) {
    if (!builder->Add(*close)) return;
    builder->Remember(
        {wire::FrameType::kWindowClose, close->window_id, uint64_t{close->generation} << 32 | close->first});
    incoming_.PopClose(now);
  }
  std::vector<uint8_t> missing;
  while (const std::optional<wire::WindowNackFrame> nack = incoming_.PeekNack(&missing)) {
    if (!builder->Add(*nack)) return;
    ++stats_.nacks_sent;
    incoming_.PopNack();
  }
  while (const std::optional<OutgoingWindows::Pending> pending = outgoing_.PeekFrame()) {
    const WindowTx* window = outgoing_.Find(pending->key);
    const bool added = pending->type == wire::FrameType::kWindowOpen ? builder->Add(window->OpenFrame())
                                                                     : builder->Add(window->StatusFrame());
    if (!added) return;
    builder->Remember({pending->type, pending->key.id, pending->key.generation});
    outgoing_.PopFrame();
  }
}

void ConnectionImpl::AddControlData(PacketBuilder* builder) {
  // Type, offset and length take at most 17 bytes.
  constexpr size_t kOverhead = 17;
  while (control_tx_.HasData() && builder->room() > kOverhead + 16) {
    const std::optional<wire::ControlFrame> frame = control_tx_.Next(builder->room() - kOverhead);
    if (!frame) return;
    LH_CHECK(builder->Add(*frame));
    builder->Remember({wire::FrameType::kControl, frame->offset, frame->data.size()});
  }
}

size_t ConnectionImpl::Finish(Instant now, PacketBuilder* builder, bool mtu_probe) {
  const size_t size = builder->Seal(*protection_);
  SentPacket sent = builder->TakeSent();
  key_update_.OnPacketSent(sent.number, protection_->key_phase(), size, now);
  sent.mtu_probe = mtu_probe;
  sent.ect0 = batch_ect0_;
  if (sent.ect0) ecn_.OnMarkedSent();
  sent.sent_time = now;
  ++next_number_;
  ++stats_.packets_sent;
  stats_.bytes_sent += size;
  const bool in_flight = sent.in_flight;
  if (in_flight) {
    if (!mtu_probe) sent.flight_place = fec_.estimator().OnSent();
    sampler_.OnPacketSent(&sent, loss_.bytes_in_flight(), now);
    last_eliciting_sent_ = now;
  }
  loss_.OnPacketSent(std::move(sent));
  const ByteCount bytes(static_cast<int64_t>(size));
  if (in_flight) {  // ACKs alone are not paced
    pacer_.OnSent(bytes, now);
    rate_->OnPacketSent(now, bytes, loss_.bytes_in_flight(), sampler_.is_app_limited());
    if (rate_->suppresses_samples()) sampler_.OnAppLimited(loss_.bytes_in_flight());
  }
  return size;
}

}  // namespace longhaul::transport
