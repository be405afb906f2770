#include "transport/core/connection_impl.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace longhaul::transport {
namespace {

std::string Seconds(Duration d) {
  const int64_t tenths = d.count() / 100'000'000;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

RateOptions WithDatagram(RateOptions rate, ByteCount datagram) {
  rate.max_datagram = datagram;
  return rate;
}

}  // namespace

ConnectionImpl::ConnectionImpl(Instant now, const Identity& identity, const ConnectionOptions& options,
                               Security* security, codec::ErasureCoder* coder, Random random,
                               std::vector<wire::ConnectionId>* over)
    : id_(identity),
      options_(options),
      security_(security),
      handshake_(identity.is_client, security->NewSession(identity.is_client)),
      key_update_(options.key_update),
      over_(over),
      datagram_bytes_(std::min(options.max_datagram.value(), kLargestInit)),
      loss_(&rtt_),
      rate_(MakeRateController(WithDatagram(options.rate, options.max_datagram), random)),
      pacer_(options.max_datagram),
      control_tx_(static_cast<size_t>(options.max_control_backlog.value())),
      outgoing_(coder),
      incoming_(coder, {options.max_open_windows, options.max_window_bytes}),
      created_(now),
      last_heard_(now),
      last_eliciting_sent_(now),
      now_(now),
      idle_timeout_(options.idle_timeout),
      ecn_(options.ecn),
      random_(random.Fork(1)),
      paths_(security, random.Fork(2)),
      first_peer_(identity.peer) {
  last_grant_.receive_window_bytes = static_cast<uint64_t>(options.receive_window.value());
  UpdatePacer(now);
  if (!options.wary || identity.is_client) return;
  admitted_ = false;
  control_rx_.SetLimits(kWary.control_received, kWary.control_pieces);
  control_tx_.SetMaxBacklog(kWary.control_backlog);
}

void ConnectionImpl::Admit(bool admitted) {
  if (!options_.wary) return;
  admitted_ = admitted;
  if (!admitted) return;
  control_rx_.SetLimits(ControlReceiveStream::kMaxBuffered, ControlReceiveStream::kMaxPieces);
  control_tx_.SetMaxBacklog(static_cast<size_t>(options_.max_control_backlog.value()));
}

void ConnectionImpl::UpdatePacer(Instant now) {
  pacer_.SetMaxQuantum(rate_->send_quantum());
  pacer_.SetRate(rate_->pacing_rate(), now);
}

ConnectionStats ConnectionImpl::stats() const {
  ConnectionStats s = stats_;
  if (protection_) s.cipher = protection_->name();
  s.packets_lost = loss_.packets_lost();
  s.packets_spurious = loss_.packets_spurious();
  s.smoothed_rtt = rtt_.has_sample() ? rtt_.smoothed_rtt() : Duration(0);
  s.min_rtt = rtt_.has_sample() ? rtt_.min_rtt() : Duration(0);
  s.latest_rtt = rtt_.latest_rtt();
  s.bytes_in_flight = loss_.bytes_in_flight();
  s.loss = fec_.estimator().loss();
  s.loss_for_fec = fec_.model().p;
  s.loss_correlation = fec_.model().rho;
  s.mean_loss_burst = fec_.model().mean_burst;
  s.fec_depth = static_cast<uint32_t>(fec_.Depth());
  s.host_drops = peer_host_drops_;
  s.path_candidates = paths_.counters().candidates;
  s.path_challenges = paths_.counters().challenges;
  s.path_timeouts = paths_.counters().timed_out;
  s.path_refused = paths_.counters().refused;
  s.ecn_state = EcnValidator::Name(ecn_.state());
  s.ecn_ce = ecn_.ce();
  s.packets_expected = acks_.largest_plus_one();
  s.incoming_queue = incoming_queue_.standing();
  s.rate = rate_->Snapshot();
  s.peer_key_updates = protection_ ? protection_->peer_updates() : 0;
  s.handshake_flights = handshake_.flights();
  if (limiter_) s.limited[static_cast<size_t>(*limiter_)] += now_ - limited_since_;
  return s;
}

size_t ConnectionImpl::MaxChunkBytes() const {
  return std::min<size_t>((static_cast<size_t>(datagram_bytes_) - wire::kDataOverheadBytes) / 16 * 16,
                          kMaxSymbolBytes);
}

std::optional<IncomingWindow> ConnectionImpl::incoming(WindowKey key) const {
  const WindowRx* rx = incoming_.Find(key);
  if (rx == nullptr) return std::nullopt;
  IncomingWindow view;
  view.high_count = rx->high_count();
  view.low_count = rx->low_count();
  view.high_complete = rx->HighComplete();
  view.complete = rx->Complete();
  view.sender_finished = rx->sender_finished();
  view.high_ratio = rx->high_count() == 0 ? 1.0 : static_cast<double>(rx->high_done()) / rx->high_count();
  view.low_ratio = rx->LowRatio();
  view.stats = rx->stats();
  return view;
}

Status ConnectionImpl::SendControl(ByteSpan bytes) {
  if (state_ != State::kConnected) return Status(StatusCode::kFailedPrecondition, "not connected");
  Status status = control_tx_.Append(bytes);
  if (!status.ok()) control_refused_ = true;
  return status;
}

Status ConnectionImpl::OpenWindow(const WindowOptions& options) {
  if (state_ != State::kConnected) return Status(StatusCode::kFailedPrecondition, "not connected");
  if (Status fits = CheckChunkLength(options.symbol_bytes); !fits.ok()) return fits;
  WindowOptions settled = options;
  if (settled.fec_depth == 0) settled.fec_depth = static_cast<uint8_t>(fec_.Depth());
  Status status = outgoing_.Open(settled, peer_parameters_->max_open_windows,
                                 ByteCount(static_cast<int64_t>(std::min<uint64_t>(
                                     peer_parameters_->max_window_bytes, uint64_t{1} << 62))));
  if (status.ok()) ++stats_.windows_opened;
  return status;
}

Status ConnectionImpl::SubmitChunk(WindowKey key, wire::ReliabilityClass reliability, ByteSpan header,
                                   ByteSpan body) {
  WindowTx* window = outgoing_.Find(key);
  if (window == nullptr) {
    return Status(StatusCode::kNotFound, "window " + std::to_string(key.id) + " is not open");
  }
  return window->Submit(reliability, header, body);
}

void ConnectionImpl::CloseWindow(WindowKey key, wire::CloseReason reason) {
  if (delivering_) {
    deferred_closes_.push_back({key, reason});
    return;
  }
  if (const WindowRx* rx = incoming_.Find(key); rx != nullptr) {
    stats_.chunks_repaired += rx->stats().high_repaired;
  }
  if (incoming_.Close(key, reason)) {
    ++stats_.windows_closed;
    acks_.RequestImmediateAck();  // the CLOSE leaves now: let the acknowledgement ride along
  }
}

void ConnectionImpl::RequestMissing(WindowKey key) { incoming_.RequestMissing(key); }

void ConnectionImpl::RunDeferredCloses() {
  std::vector<DeferredClose> closes;
  closes.swap(deferred_closes_);
  for (const DeferredClose& c : closes) CloseWindow(c.key, c.reason);
}

void ConnectionImpl::Grant(Bandwidth rate, ByteCount receive_window) {
  wire::GrantFrame grant;
  // Zero would mean no bound.
  grant.rate_bytes_per_second =
      rate.IsZero() ? 0 : std::max<uint64_t>(1, static_cast<uint64_t>(rate.bytes_per_second()));
  grant.receive_window_bytes = static_cast<uint64_t>(receive_window.value());
  if (grant == last_grant_) return;
  last_grant_ = grant;
  grant_to_send_ = grant;
}

void ConnectionImpl::Close(const Status& why) {
  if (state_ == State::kClosing || state_ == State::kClosed) return;
  if (state_ == State::kConnecting && id_.is_client) {
    CloseNow(why);  // the server may not even know us
    return;
  }
  state_ = State::kClosing;
  closing_why_ = why;
  closes_left_ = kCloseRepeats;
  next_close_ = now_;
}

void ConnectionImpl::CloseNow(Status why) {
  if (state_ == State::kClosed) return;
  if (state_ == State::kConnecting && !id_.is_client) handshake_failure_ = why;
  state_ = State::kClosed;
  closed_ = std::move(why);
  over_->push_back(id_.local);
}

Duration ConnectionImpl::Pto() const { return rtt_.PtoBase(AckTracker::kMaxAckDelay); }

wire::TransportParametersFrame ConnectionImpl::LocalParameters() const {
  wire::TransportParametersFrame p;
  p.max_datagram_bytes = static_cast<uint32_t>(options_.max_datagram.value());
  p.idle_timeout_ms = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(options_.idle_timeout).count());
  p.receive_window_bytes = static_cast<uint64_t>(options_.receive_window.value());
  p.max_open_windows = options_.max_open_windows;
  p.max_window_bytes = static_cast<uint64_t>(options_.max_window_bytes.value());
  return p;
}

double ConnectionImpl::PacketsPerRecoveryTime() const {
  // A recovery time is 1.25 RTT; before the first sample the initial RTT stands in.
  const ByteCount in_recovery = rate_->pacing_rate() * (rtt_.smoothed_rtt() * 5 / 4);
  return std::max(1.0, in_recovery / ByteCount(datagram_bytes_));
}

PathView ConnectionImpl::path_view() const {
  const LossModel& loss = fec_.model();
  return {loss.p, PacketsPerRecoveryTime(),   loss.rho, loss.mean_burst, fec_.extra_repair(),
          now_,   rtt_.smoothed_rtt() * 5 / 4};
}

void ConnectionImpl::HandleTimeout(Instant now) {
  now_ = now;
  if (state_ == State::kClosed) return;
  if (now >= IdleDeadline()) {
    const std::string silent = id_.peer.ToString() + " was silent for " + Seconds(now - last_heard_);
    if (state_ == State::kClosing) {
      CloseNow(*closing_why_);
    } else if (state_ == State::kConnecting) {
      CloseNow(NoAnswer(now));
    } else {
      CloseNow(Status(StatusCode::kPeerDead, silent));
    }
    return;
  }
  if (state_ == State::kClosing) {
    if (closes_left_ == 0 && now >= next_close_) CloseNow(*closing_why_);
    return;
  }
  if (state_ == State::kConnecting) {
    if (refused_at_ <= now) return CloseNow(*refused_);
    handshake_.OnTimeout(now);
  }
  if (loss_.Deadline() <= now) Apply(now, loss_.OnTimeout(now), 0, 0);
  pmtu_.OnTimeout(now);
  paths_.OnTimeout(now);
  if (announce_by_ <= now) Announce();
  if (state_ == State::kConnected && !ping_due_ && now - last_eliciting_sent_ >= options_.keepalive) {
    ping_due_ = true;
    // A PING puts the probe timeout off, which by its back-off may be further away: then this is the probe.
    SendAgain(loss_.UnackedFrames(kMaxProbeFrames));
  }
}

Status ConnectionImpl::NoAnswer(Instant now) const {
  std::string text = "no answer from " + id_.peer.ToString() + " within " + Seconds(now - last_heard_);
  // Who does not share the key is not told so.
  if (security_->IsSecure() && id_.is_client) text += " (a server with another key does not answer)";
  return Status(StatusCode::kUnavailable, std::move(text));
}

Instant ConnectionImpl::IdleDeadline() const {
  const Instant idle = last_heard_ + idle_timeout_;
  return state_ == State::kConnecting ? std::min(idle, created_ + options_.handshake_timeout) : idle;
}

Instant ConnectionImpl::NextTimeout() const {
  if (state_ == State::kClosed) return Instant::Infinite();
  Instant next = IdleDeadline();
  if (state_ == State::kClosing) return std::min(next, next_close_);
  next = std::min(next, loss_.Deadline());
  if (state_ == State::kConnecting) next = std::min({next, handshake_.Deadline(), refused_at_});
  next = std::min(next, acks_.Deadline());
  if (state_ == State::kConnected) {
    if (!ping_due_) next = std::min(next, last_eliciting_sent_ + options_.keepalive);
    next = std::min(next, incoming_.NextRepeat());
    next = std::min({next, pmtu_.Deadline(), paths_.Deadline(), announce_by_});
    if (blocked_by_pacer_ || mtu_probe_waits_) next = std::min(next, pacer_.NextSendTime(now_));
  }
  return next;
}

void ConnectionImpl::HandleSendRefused(size_t datagram_bytes) {
  // The kernel knows that the path does not carry it.
  if (state_ == State::kConnected) {
    pmtu_.OnRefused(static_cast<int64_t>(datagram_bytes), now_);
    FollowPathMtu();
    return;
  }
  if (state_ == State::kConnecting && id_.is_client && datagram_bytes_ > kBaseDatagram &&
      static_cast<int64_t>(datagram_bytes) > kBaseDatagram) {
    refused_bytes_ = static_cast<int64_t>(datagram_bytes);
    datagram_bytes_ = kBaseDatagram;
    handshake_.SendAgain();
  }
}

void ConnectionImpl::Apply(Instant now, LossDetection::Outcome outcome, uint64_t new_ce,
                           uint64_t new_host_drops) {
  CongestionEvent event;
  event.now = now;
  // Every acknowledgement is booked before any loss is acted on: a block that just became complete needs none
  // of its lost symbols again.
  for (const SentPacket& packet : outcome.spurious) {
    sampler_.OnPacketAcked(packet, now);
    if (!packet.mtu_probe) event.spurious += packet.bytes;
    OnPacketAcked(packet, true);
  }
  for (const SentPacket& packet : outcome.acked) {
    sampler_.OnPacketAcked(packet, now);
    event.acked += packet.bytes;
    OnPacketAcked(packet, false);
  }
  lost_packets_.clear();
  for (const SentPacket& packet : outcome.lost) {
    if (packet.mtu_probe) continue;
    if (packet.in_flight) fec_.estimator().OnLost(packet.flight_place);
    if (packet.number < path_first_number_) continue;  // no congestion of this path
    sampler_.OnPacketLost(packet);
    event.lost += packet.bytes;
    lost_packets_.push_back(sampler_.Describe(packet));
  }
  fec_.Update(now, rtt_.smoothed_rtt(), PacketsPerRecoveryTime(), rate_->path_loss().value_or(1));
  event.lost_packets = lost_packets_;
  event.timeout = outcome.send_probes;
  for (const SentPacket& packet : outcome.lost) OnPacketLost(packet);
  if (outcome.send_probes) {
    ++stats_.pto_fired;
    probes_due_ = 2;
    // A probe may as well bring what is missing: that saves the round trip that tells of the loss.
    if (state_ == State::kConnected) {
      SendAgain(loss_.UnackedFrames(kMaxProbeFrames));
      ProbeWithChunks();
    }
  }
  const bool nothing = outcome.acked.empty() && outcome.lost.empty() && outcome.spurious.empty();
  if (nothing && new_ce == 0 && !event.timeout) return;
  event.sample = sampler_.TakeSample(rtt_.has_sample() ? rtt_.min_rtt() : Duration(0), now);
  event.bytes_in_flight = loss_.bytes_in_flight();
  event.delivered = sampler_.delivered();
  event.latest_rtt = outcome.rtt_updated ? rtt_.latest_rtt() : Duration(0);
  event.adjusted_rtt = outcome.rtt_updated ? rtt_.adjusted_rtt() : Duration(0);
  event.smoothed_rtt = rtt_.smoothed_rtt();
  event.min_rtt = rtt_.has_sample() ? rtt_.min_rtt() : Duration(0);
  event.ecn_ce = new_ce;
  event.host_drops = new_host_drops;
  rate_->OnCongestionEvent(event);
  UpdatePacer(now);
  acks_.SetSmoothedRtt(rtt_.smoothed_rtt());
  FollowPathMtu();
}

void ConnectionImpl::OnPacketAcked(const SentPacket& packet, bool spurious) {
  if (packet.in_flight && !packet.mtu_probe) {
    spurious ? fec_.estimator().OnSpurious(packet.flight_place)
             : fec_.estimator().OnAcked(packet.flight_place);
  }
  key_update_.OnPacketAcked(packet.number);
  pmtu_.OnAcked(packet.number, packet.bytes.value(), now_);
  black_hole_.OnPacketAcked(packet.number, packet.bytes.value());
  if (packet.chunk) {
    WindowTx* window = outgoing_.Find({packet.chunk->window_id, packet.chunk->generation});
    if (window != nullptr) window->OnAcked(*packet.chunk);
  }
  for (const SentFrame& frame : packet.frames) {
    switch (frame.type) {
      case wire::FrameType::kControl:
        control_tx_.OnAcked(frame.a, frame.b);
        break;
      case wire::FrameType::kWindowClose:
        incoming_.OnCloseAcked({static_cast<uint32_t>(frame.a), static_cast<uint8_t>(frame.b >> 32)},
                               static_cast<uint32_t>(frame.b));
        break;
      case wire::FrameType::kAck:
        acks_.OnAckAcknowledged(frame.a);
        break;
      default:
        break;
    }
  }
  if (control_refused_ && control_tx_.backlog() == 0) {
    control_refused_ = false;
    if (observer_ != nullptr) observer_->OnControlWritable(*this);
  }
}

void ConnectionImpl::OnPacketLost(const SentPacket& packet) {
  if (packet.ect0) ecn_.OnMarkedLost();
  if (packet.mtu_probe) {
    if (pmtu_.OnProbeLost(packet.number, now_)) ++stats_.mtu_probes_lost;
  } else {
    black_hole_.OnPacketLost(packet.number, packet.bytes.value(), packet.sent_time);
  }
  if (packet.chunk) {
    WindowTx* window = outgoing_.Find({packet.chunk->window_id, packet.chunk->generation});
    if (window != nullptr) window->OnLost(*packet.chunk, path_view());
  }
  SendAgain(packet.frames);
}

void ConnectionImpl::ProbeWithChunks() {
  if (outgoing_.HasChunk()) return;
  int found = 0;
  for (const SentChunk& chunk : loss_.UnackedChunks(kMaxProbeChunks)) {
    WindowTx* window = outgoing_.Find({chunk.window_id, chunk.generation});
    if (window != nullptr && window->OnProbe(chunk) && ++found == probes_due_) return;
  }
}

void ConnectionImpl::SendAgain(std::span<const SentFrame> frames) {
  for (const SentFrame& frame : frames) {
    const WindowKey key{static_cast<uint32_t>(frame.a), static_cast<uint8_t>(frame.b)};
    switch (frame.type) {
      case wire::FrameType::kControl:
        control_tx_.OnLost(frame.a, frame.b);
        break;
      case wire::FrameType::kWindowOpen:
      case wire::FrameType::kWindowStatus:
        outgoing_.Requeue(frame.type, key);
        break;
      case wire::FrameType::kWindowClose:
        incoming_.OnCloseLost({key.id, static_cast<uint8_t>(frame.b >> 32)}, static_cast<uint32_t>(frame.b));
        break;
      case wire::FrameType::kGrant:
        if (!grant_to_send_) grant_to_send_ = last_grant_;
        break;
      case wire::FrameType::kNewCid:
        confirm_due_ = true;
        break;
      default:
        break;
    }
  }
}

}  // namespace longhaul::transport
