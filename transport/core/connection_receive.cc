// The receiving side of ConnectionImpl: from a datagram to its frames and chunk.

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "proto/utf8.h"
#include "transport/core/connection_impl.h"

namespace longhaul::transport {

bool ConnectionImpl::OpenPacket(wire::PacketNumber number, size_t header_bytes, MutableByteSpan datagram,
                                MutableByteSpan* body) {
  if (datagram.size() < header_bytes + wire::kTagBytes) {
    ++stats_.malformed_dropped;
    return false;
  }
  *body = datagram.subspan(header_bytes, datagram.size() - header_bytes - wire::kTagBytes);
  if (!protection_->Open(number, 0, datagram.first(header_bytes), *body, datagram.last(wire::kTagBytes))) {
    ++stats_.bad_tag_dropped;
    return false;
  }
  return true;
}

ConnectionImpl::ShortFate ConnectionImpl::HandleShort(Instant now, const Address& from,
                                                      const wire::ShortHeader& header,
                                                      MutableByteSpan datagram, const ReceiveInfo& info) {
  const bool late = previous_peer_ == from && header.packet_number < acks_.largest_plus_one();
  if (from != id_.peer && !late) {
    return TakesCandidates() ? HandleCandidate(now, from, header, datagram, info) : ShortFate::kElsewhere;
  }
  now_ = now;
  if (state_ == State::kClosed) return ShortFate::kHandled;
  if (!protection_) {  // it overtook the handshake, and will come again
    ++stats_.before_keys_dropped;
    return ShortFate::kHandled;
  }
  if (const std::optional<Opened> packet = OpenShort(header, datagram)) {
    TakeShort(now, header.packet_number, *packet, datagram.size(), info);
  }
  return ShortFate::kHandled;
}

bool ConnectionImpl::Trusts(const Address& from) const {
  return from == id_.peer && (state_ == State::kConnected || handshake_.address_proved());
}

bool ConnectionImpl::HandleReset(ByteSpan datagram) {
  if (!reset_token_ || datagram.size() < kMinResetBytes || state_ == State::kClosed) return false;
  // In constant time: how far a guess was right is nobody's business.
  const ByteSpan end = datagram.last(reset_token_->size());
  int difference = 0;
  for (size_t i = 0; i < end.size(); ++i) difference |= end[i] ^ (*reset_token_)[i];
  if (difference != 0) return false;
  CloseNow(Status(StatusCode::kUnavailable,
                  "server " + id_.peer.ToString() + " has forgotten this connection: it was restarted"));
  return true;
}

std::optional<ConnectionImpl::Opened> ConnectionImpl::OpenShort(const wire::ShortHeader& header,
                                                                MutableByteSpan datagram) {
  if (acks_.IsDuplicate(header.packet_number)) {
    ++stats_.duplicates_dropped;
    return std::nullopt;
  }
  Opened packet;
  size_t header_bytes = wire::kShortHeaderBytes;
  if (header.has_data) {
    ByteReader reader(datagram.subspan(std::min(datagram.size(), header_bytes)));
    packet.data = wire::DecodeDataHeader(reader);
    header_bytes += wire::kDataHeaderBytes;
    if (!packet.data) {
      ++stats_.malformed_dropped;
      return std::nullopt;
    }
  }
  if (!OpenPacket(header.packet_number, header_bytes, datagram, &packet.body)) return std::nullopt;
  return packet;
}

void ConnectionImpl::TakeShort(Instant now, wire::PacketNumber number, const Opened& packet,
                               size_t datagram_bytes, const ReceiveInfo& info) {
  if (packet.frames_length() > packet.body.size()) {
    ProtocolViolation(Status(StatusCode::kProtocolViolation, "frames are longer than their packet"));
    return;
  }
  last_heard_ = now;
  heard_short_ = true;
  ++stats_.packets_received;
  stats_.bytes_received += datagram_bytes;
  // The first short packet proves that the peer has keys: a client whose handshake was empty has our ACCEPT,
  // a server has taken ours to the end.
  if (state_ == State::kConnecting) {
    handshake_.OnAnswered(now);
    TakeRttSample(now);
    BecomeConnected();
    if (state_ != State::kConnected) return;
  }
  pmtu_.OnPeerDatagram(static_cast<int64_t>(datagram_bytes), now);
  // The counter is the socket's: what it dropped before this connection began is none of ours.
  if (!host_drops_before_) host_drops_before_ = info.host_drops;
  HandleBody(now, number, packet.data, packet.body, info);
}

void ConnectionImpl::HandleBody(Instant now, wire::PacketNumber number,
                                const std::optional<wire::DataHeader>& data, ByteSpan body,
                                const ReceiveInfo& info) {
  receiving_number_ = number;
  bool eliciting = data.has_value();
  const size_t frames_length = data ? data->frames_length : body.size();
  if (Status status = HandleFrames(now, body.first(frames_length), &eliciting); !status.ok()) {
    ProtocolViolation(status);
    return;
  }
  if (state_ == State::kClosed || state_ == State::kClosing) return;
  if (data) {
    switch (DeliverChunk(*data, body.subspan(frames_length))) {
      case ChunkFate::kTaken:
        break;
      case ChunkFate::kNoRoom:  // not acknowledged: the peer will send it again
        ++stats_.unknown_window_dropped;
        return;
      case ChunkFate::kInvalid:
        ProtocolViolation(Status(StatusCode::kProtocolViolation,
                                 "chunk outside of window " + std::to_string(data->window_id)));
        return;
    }
  }
  if (data) incoming_queue_.OnPacket(now, data->timestamp_us, rtt_.smoothed_rtt());
  if (host_drops_before_)
    acks_.SetHostDrops(info.host_drops - std::min(info.host_drops, *host_drops_before_));
  acks_.OnPacketReceived(number, eliciting, info.ecn_ce, now);
  if (info.ecn_ect0) acks_.CountEct0();
  if (data && data->last_of_window) acks_.RequestImmediateAck();
}

Status ConnectionImpl::HandleFrames(Instant now, ByteSpan frames, bool* eliciting) {
  ByteReader reader(frames);
  while (reader.ok() && !reader.AtEnd()) {
    Result<wire::Frame> frame = wire::DecodeFrame(reader);
    if (!frame.ok()) return frame.status();
    *eliciting = *eliciting || wire::IsAckEliciting(*frame);
    if (Status status = HandleFrame(now, *frame); !status.ok()) return status;
    if (state_ == State::kClosed) return Status::Ok();
  }
  return Status::Ok();
}

Status ConnectionImpl::HandleFrame(Instant now, const wire::Frame& frame) {
  // While closing only the peer's CLOSE means anything.
  if (state_ == State::kClosing && !std::holds_alternative<wire::CloseFrame>(frame)) return Status::Ok();
  struct Visitor {
    ConnectionImpl* self;
    Instant now;
    Status operator()(const wire::PaddingFrame&) { return Status::Ok(); }
    Status operator()(const wire::PingFrame&) {
      self->acks_.RequestImmediateAck();  // a probe wants to know now
      return Status::Ok();
    }
    Status operator()(const wire::AckFrame& f) { return self->HandleAck(now, f); }
    Status operator()(const wire::ControlFrame& f) {
      Status status;
      self->HandleControl(f, &status);
      return status;
    }
    Status operator()(const wire::WindowOpenFrame& f) { return self->HandleWindowOpen(f); }
    Status operator()(const wire::WindowStatusFrame& f) { return self->HandleWindowStatus(f); }
    Status operator()(const wire::WindowCloseFrame& f) { return self->HandleWindowClose(f); }
    Status operator()(const wire::WindowNackFrame& f) {
      self->HandleWindowNack(now, f);
      return Status::Ok();
    }
    Status operator()(const wire::GrantFrame& f) {
      // An older one that was overtaken would stay for as long as the peer believes the newer in force.
      if (self->receiving_number_ < self->grant_number_) return Status::Ok();
      self->grant_number_ = self->receiving_number_;
      self->peer_receive_window_ = f.receive_window_bytes;
      self->granted_ = Bandwidth::BytesPerSecond(
          static_cast<int64_t>(std::min<uint64_t>(f.rate_bytes_per_second, uint64_t{1} << 50)));
      self->rate_->SetGrant(self->granted_);
      self->UpdatePacer(now);
      return Status::Ok();
    }
    Status operator()(const wire::CloseFrame& f) {
      self->HandlePeerClose(f);
      return Status::Ok();
    }
    Status operator()(const wire::NewCidFrame& f) {
      if (!self->id_.is_client) return Status(StatusCode::kProtocolViolation, "NEW_CID from a client");
      self->reset_token_ = f.reset_token;
      return Status::Ok();
    }
    Status operator()(const wire::TransportParametersFrame&) {
      return OnlyInHandshake("TRANSPORT_PARAMETERS");
    }
    Status operator()(const wire::CryptoFrame&) { return OnlyInHandshake("CRYPTO"); }
    static Status OnlyInHandshake(std::string_view name) {
      return Status(StatusCode::kProtocolViolation, std::string(name) + " outside of the handshake");
    }
    Status operator()(const wire::PathChallengeFrame& f) {
      // The asker asks again when there is no answer, so what is too much may be dropped.
      if (self->path_responses_.size() < kMaxPathResponses) self->path_responses_.push_back(f.data);
      return Status::Ok();
    }
    Status operator()(const wire::PathResponseFrame&) { return Status::Ok(); }
  };
  return std::visit(Visitor{this, now}, frame);
}

Status ConnectionImpl::HandleAck(Instant now, const wire::AckFrame& ack) {
  const std::optional<wire::PacketNumber> newest_before = loss_.newest_acked();
  Result<LossDetection::Outcome> outcome = loss_.OnAckReceived(ack, now);
  if (!outcome.ok()) return outcome.status();
  const uint64_t new_ce = TakeEcnCounts(ack, *outcome, loss_.newest_acked() != newest_before);
  const uint64_t new_drops = ack.host_drops > peer_host_drops_ ? ack.host_drops - peer_host_drops_ : 0;
  peer_host_drops_ += new_drops;
  Apply(now, std::move(*outcome), new_ce, new_drops);
  return Status::Ok();
}

uint64_t ConnectionImpl::TakeEcnCounts(const wire::AckFrame& ack, const LossDetection::Outcome& outcome,
                                       bool newest) {
  const auto marked = [](const SentPacket& packet) { return packet.ect0; };
  const auto count =
      std::ranges::count_if(outcome.acked, marked) + std::ranges::count_if(outcome.spurious, marked);
  return ecn_.OnAck(newest, static_cast<uint64_t>(count), ack.ecn_ect0, ack.ecn_ce);
}

void ConnectionImpl::HandleControl(const wire::ControlFrame& frame, Status* status) {
  std::vector<uint8_t> ready;
  *status = control_rx_.OnFrame(frame, &ready);
  if (!status->ok() || ready.empty() || observer_ == nullptr) return;
  if (announced_) return TellControlData(ready);
  if (early_control_.size() + ready.size() > control_rx_.max_buffered()) {
    *status =
        Status(StatusCode::kProtocolViolation, "too much on the control stream before the path is known");
    return;
  }
  early_control_.insert(early_control_.end(), ready.begin(), ready.end());
}

// In slices: what is made of them lives at the same time.
void ConnectionImpl::TellControlData(ByteSpan bytes) {
  while (!bytes.empty() && state_ == State::kConnected) {
    const size_t slice = std::min(bytes.size(), ConnectionObserver::kMaxControlSlice);
    observer_->OnControlData(*this, bytes.first(slice));
    bytes = bytes.subspan(slice);
  }
}

Status ConnectionImpl::HandleTransportParameters(const wire::TransportParametersFrame& parameters) {
  if (peer_parameters_) return Status::Ok();  // repeated
  if (parameters.max_datagram_bytes < kBaseDatagram || parameters.idle_timeout_ms == 0) {
    return Status(StatusCode::kProtocolViolation, "transport parameters out of range");
  }
  peer_parameters_ = parameters;
  peer_receive_window_ = parameters.receive_window_bytes;
  datagram_bytes_ = std::min(datagram_bytes_, static_cast<int64_t>(parameters.max_datagram_bytes));
  const auto peer_idle =
      std::chrono::milliseconds(std::min<uint64_t>(parameters.idle_timeout_ms, 86'400'000));
  idle_timeout_ = std::min(idle_timeout_, Duration(peer_idle));
  return Status::Ok();
}

Status ConnectionImpl::HandleWindowOpen(const wire::WindowOpenFrame& open) {
  const WindowKey key{open.window_id, open.generation};
  if (!admitted_) {
    ++stats_.not_admitted_dropped;
    Announce();
    if (observer_ != nullptr) (void)observer_->OnWindowOpened(*this, key, open);
    return Status::Ok();
  }
  Result<IncomingWindows::OpenVerdict> verdict = incoming_.OnOpen(open);
  if (!verdict.ok()) return verdict.status();
  if (*verdict != IncomingWindows::OpenVerdict::kOpened) return Status::Ok();
  Announce();
  if (observer_ == nullptr || !observer_->OnWindowOpened(*this, key, open).ok()) {
    incoming_.Refuse(open);
    return Status::Ok();
  }
  if (state_ != State::kConnected) return Status::Ok();
  const IncomingWindows::Early early = incoming_.TakeEarly(key);
  for (const IncomingWindows::EarlyChunk& chunk : early.chunks) {
    if (DeliverChunk(chunk.header, chunk.chunk) == ChunkFate::kInvalid) {
      return Status(StatusCode::kProtocolViolation, "chunk outside of window " + std::to_string(key.id));
    }
  }
  if (WindowRx* rx = incoming_.Find(key); rx != nullptr && early.finished) {
    wire::WindowStatusFrame status;
    status.window_id = key.id;
    status.generation = key.generation;
    status.high_sent = open.high_count;
    status.low_sent = open.low_count;
    status.finished = true;
    rx->OnStatus(status);
    ReportProgress(key);
  }
  return Status::Ok();
}

Status ConnectionImpl::HandleWindowStatus(const wire::WindowStatusFrame& status) {
  const WindowKey key{status.window_id, status.generation};
  if (!admitted_) return Status::Ok();
  if (WindowRx* rx = incoming_.Find(key); rx != nullptr) {
    rx->OnStatus(status);
    ReportProgress(key);
  } else if (status.finished && !incoming_.IsClosed(key) && !incoming_.KeepEarlyFinished(key)) {
    ++stats_.unknown_window_dropped;
  }
  return Status::Ok();
}

Status ConnectionImpl::HandleWindowClose(const wire::WindowCloseFrame& close) {
  const WindowKey key{close.window_id, close.generation};
  WindowTx* window = outgoing_.Find(key);
  if (window == nullptr || !window->OnClose(close)) return Status::Ok();
  const WindowReceipt& receipt = window->receipt();
  stats_.low_chunks_lost += receipt.low.size() - receipt.low.count();
  if (observer_ != nullptr) {
    observer_->OnWindowClosed(*this, key, window->close_reason(), receipt, window->stats());
  }
  outgoing_.Erase(key);
  return Status::Ok();
}

void ConnectionImpl::HandleWindowNack(Instant now, const wire::WindowNackFrame& nack) {
  const std::optional<uint32_t> queued = outgoing_.OnNack(nack, now, rtt_.smoothed_rtt());
  if (!queued) {
    ++stats_.nacks_ignored;
  } else if (*queued > 0) {
    ++stats_.nacks_received;
  }
}

// It ends on somebody's terminal or in a log.
std::string ConnectionImpl::ReasonOf(const wire::CloseFrame& close) {
  return wire::Printable(close.reason, wire::kMaxCloseReasonBytes);
}

void ConnectionImpl::HandlePeerClose(const wire::CloseFrame& close) {
  if (state_ == State::kClosing) {
    CloseNow(*closing_why_);
    return;
  }
  closing_why_ = close.code == StatusCode::kOk ? Status::Ok() : Status(close.code, ReasonOf(close));
  final_datagram_.resize(static_cast<size_t>(kBaseDatagram));
  final_datagram_.resize(BuildClose(final_datagram_));
  CloseNow(*closing_why_);
}

ConnectionImpl::ChunkFate ConnectionImpl::DeliverChunk(const wire::DataHeader& header, ByteSpan chunk) {
  const WindowKey key{header.window_id, header.generation};
  if (chunk.empty()) return ChunkFate::kInvalid;
  if (!admitted_) {
    ++stats_.not_admitted_dropped;
    return ChunkFate::kTaken;
  }
  if (incoming_.IsClosed(key)) {
    ++stats_.late_dropped;
    return ChunkFate::kTaken;
  }
  WindowRx* rx = incoming_.Find(key);
  if (rx == nullptr) {
    return incoming_.KeepEarly(key, header, chunk) ? ChunkFate::kTaken : ChunkFate::kNoRoom;
  }
  class Sink final : public WindowRx::Sink {
   public:
    Sink(ConnectionImpl* self, WindowKey key) : self_(self), key_(key) {}
    ChunkVerdict OnChunk(wire::ReliabilityClass reliability, uint32_t sequence, ByteSpan bytes,
                         bool repaired) override {
      self_->stats_.chunk_bytes_received += bytes.size();
      ChunkVerdict verdict = ChunkVerdict::kRefused;  // nobody is there who could take it
      if (self_->observer_ != nullptr) {
        verdict = self_->observer_->OnChunk(*self_, key_, reliability, sequence, bytes, repaired);
      }
      if (verdict == ChunkVerdict::kRefused) ++self_->stats_.chunks_refused;
      return verdict;
    }

   private:
    ConnectionImpl* self_;
    WindowKey key_;
  };
  Sink sink(this, key);
  if (header.repair) ++stats_.repair_received;
  delivering_ = true;
  const WindowRx::Verdict verdict = rx->OnData(header, chunk, &sink);
  delivering_ = false;
  if (verdict == WindowRx::Verdict::kInvalid) return ChunkFate::kInvalid;
  if (header.last_of_window) {
    wire::WindowStatusFrame finished;
    finished.window_id = key.id;
    finished.generation = key.generation;
    finished.high_sent = rx->high_count();
    finished.low_sent = rx->low_count();
    finished.finished = true;
    rx->OnStatus(finished);
  }
  RunDeferredCloses();
  ReportProgress(key);
  return ChunkFate::kTaken;
}

void ConnectionImpl::ReportProgress(WindowKey key) {
  if (observer_ != nullptr && incoming_.Find(key) != nullptr) observer_->OnWindowProgress(*this, key);
}

void ConnectionImpl::ProtocolViolation(const Status& why) {
  ++stats_.malformed_dropped;
  Close(Status(StatusCode::kProtocolViolation, "peer " + id_.peer.ToString() + ": " + why.message()));
}

}  // namespace longhaul::transport
