#include "transport/core/connection/connection_impl.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/reached.h"
#include "base/units_text.h"

namespace longhaul::transport {
namespace {

RateOptions Rate(const ConnectionOptions& options) {
  RateOptions rate = options.rate;
  rate.max_datagram = options.max_datagram;
  return rate;
}

ControlChannel::Limits Control(const ConnectionOptions& options, bool wary) {
  ControlChannel::Limits limits;
  limits.backlog = static_cast<size_t>(options.max_control_backlog.value());
  return wary ? ControlChannel::Limits{kWary.control_received, kWary.control_pieces, kWary.control_backlog}
              : limits;
}

// A timer on a busy host is late by some tens of milliseconds; by more, when the host has stood still.
constexpr Duration kStall = std::chrono::milliseconds(250);

// A client that hears nothing for so many probe timeouts takes another port; the next times it waits twice as
// long. Servers on busy hosts stand still for some hundreds of milliseconds, and then a new path only costs
// what was learned of the old one.
constexpr int kSilentPtos = 3;
constexpr Duration kLeastSilence = std::chrono::milliseconds(500);
constexpr Duration kLongestSilence = std::chrono::seconds(3);
constexpr int kSilenceDoublings = 3;  // of the least one: 4 s, above the longest

// A server does, and its client, which has the same options, believes so.
bool MayFollow(const ConnectionOptions& options, const Security& security) {
  return options.allow_migration.value_or(security.IsSecure());
}

Path::Options PathOptions(const ConnectionOptions& options, bool is_client, const Security& security) {
  return {options.max_datagram.value(), options.ecn, !is_client && MayFollow(options, security)};
}

}  // namespace

ConnectionImpl::ConnectionImpl(Instant now, const Identity& identity, const ConnectionOptions& options,
                               const std::shared_ptr<Security>& security, codec::ErasureCoder* coder,
                               Random random, Attention* attention)
    : attention_(attention),
      options_(options),
      security_(security),
      skip_seed_(Random(random).Fork(3).Next()),
      events_(this, &attention->ready),
      flight_(now, Rate(options), random),
      path_(PathOptions(options, identity.is_client, *security), identity.peer, security.get(),
            random.Fork(2)),
      handshaking_({identity.is_client, identity.local, identity.remote, Handshaking::ParametersOf(options)},
                   security.get(), &path_, &stats_),
      windows_(coder, {options.max_open_windows, options.max_window_bytes}, options.receive_window, &events_,
               &stats_),
      control_(Control(options, options.wary && !identity.is_client), &events_),
      reader_({&handshaking_, &flight_, &path_, &windows_, &control_, &writer_, &events_, &stats_}),
      writer_({&handshaking_, &flight_, &path_, &windows_, &control_, &stats_}, options.key_update),
      introduced_(identity.is_client),
      known_to_owner_(identity.is_client),
      created_(now),
      last_heard_(now),
      now_(now),
      idle_timeout_(options.idle_timeout),
      may_take_ports_(identity.is_client && MayFollow(options, *security)) {
  windows_.Admit(!options.wary || identity.is_client);
  Stirred();
}

ConnectionImpl& ConnectionImpl::Stirred() {
  if (!std::exchange(turn_.in_sending, true)) attention_->sending.push_back(this);
  NoteMoved();
  return *this;
}

void ConnectionImpl::NoteMoved() {
  if (!std::exchange(turn_.in_moved, true)) attention_->moved.push_back(this);
}

// --- Questions and requests ---

ConnectionStats ConnectionImpl::stats() const {
  ConnectionStats s = stats_;
  flight_.AddTo(&s, now_);
  path_.AddTo(&s);
  s.events_dropped = events_.dropped();
  s.incoming_queue = reader_.incoming_queue();
  s.host_delay = reader_.host_delay().mean();
  s.host_delay_max = reader_.host_delay().largest();
  s.handshake_flights = handshaking_.flights();
  if (const PacketProtection* protection = handshaking_.protection()) {
    s.cipher = protection->name();
    s.peer_key_updates = protection->peer_updates();
  }
  return s;
}

void ConnectionImpl::Admit(bool admitted) {
  if (!options_.wary) return;
  Stirred().windows_.Admit(admitted);
  if (admitted) control_.SetLimits(Control(options_, false));
}

Status ConnectionImpl::SendControl(ByteSpan bytes) {
  if (state_ != State::kConnected) return Status(StatusCode::kFailedPrecondition, "not connected");
  return Stirred().control_.Send(bytes);
}

Status ConnectionImpl::OpenWindow(const WindowOptions& options) {
  if (state_ != State::kConnected) return Status(StatusCode::kFailedPrecondition, "not connected");
  WindowOptions advised = options;
  if (advised.fec_depth == 0) advised.fec_depth = flight_.FecDepth();
  return Stirred().windows_.Open(advised, *handshaking_.peer_parameters());
}

void ConnectionImpl::CloseWindow(WindowKey key, wire::CloseReason reason) {
  // The CLOSE leaves now: let the acknowledgement ride along.
  if (Stirred().windows_.Close(key, reason)) flight_.acks().RequestImmediateAck();
}

void ConnectionImpl::Close(const Status& why) {
  if (state_ == State::kClosing || state_ == State::kClosed) return;
  if (state_ == State::kConnecting && is_client()) {
    CloseNow(why);  // the server may not even know this client
    return;
  }
  state_ = State::kClosing;
  Stirred().closing_.Begin(now_, why);
}

void ConnectionImpl::CloseNow(Status why) {
  if (state_ == State::kClosed) return;
  if (state_ == State::kConnecting && !is_client()) handshaking_.SetFailure(why);
  state_ = State::kClosed;
  Stirred().events_.PushEnd(std::move(why));
}

void ConnectionImpl::SetFinalDatagram() {
  std::vector<uint8_t> bytes(static_cast<size_t>(Path::kBaseDatagram));
  bytes.resize(BuildClose(bytes));
  closing_.SetFinalDatagram(std::move(bytes));
}

void ConnectionImpl::ProtocolViolation(const Status& why) {
  ++stats_.malformed_dropped;
  Close(Status(StatusCode::kProtocolViolation, "peer " + peer().ToString() + ": " + why.message()));
}

// --- What happened ---

void ConnectionImpl::BeginEvent(Instant now) {
  now_ = now;
  Stirred().events_.EndLoans();
  windows_.EndLoans();
}

void ConnectionImpl::Introduce() {
  if (!std::exchange(introduced_, true)) events_.Push(EventQueue::Kind::kAccepted);
}

std::optional<Event> ConnectionImpl::PollEvent() {
  Stirred();
  for (;;) {
    // After Close nothing but Closed follows.
    if (state_ == State::kClosing) events_.Clear();
    Result<std::optional<Event>> event = events_.Poll(&windows_, flight_.smoothed_rtt());
    if (!event.ok()) {
      ProtocolViolation(event.status());
      continue;
    }
    const bool accepted = event->has_value() && std::holds_alternative<event::Accepted>(**event);
    known_to_owner_ = known_to_owner_ || accepted;
    return *std::move(event);
  }
}

// --- From the first INIT to the connection ---

void ConnectionImpl::HandleLong(Instant now, const wire::LongHeader& header, ByteSpan frames,
                                size_t datagram_bytes, bool proves_address) {
  BeginEvent(now);
  if (!TakesLong() || !handshaking_.Accepts(header)) return;
  ++stats_.packets_received;
  stats_.bytes_received += datagram_bytes;
  if (state_ == State::kConnected) return handshaking_.HandleLateLong(header);
  const auto outcome = handshaking_.HandleLong(now, header, frames, datagram_bytes, proves_address);
  if (!handshaking_.open()) last_heard_ = now;  // until then any host can have sent it
  if (const auto& peer = handshaking_.peer_parameters()) {
    flight_.SetReceiveWindow(peer->receive_window_bytes);
    const auto idle = std::chrono::milliseconds(std::min<uint64_t>(peer->idle_timeout_ms, 86'400'000));
    idle_timeout_ = std::min<Duration>(idle_timeout_, idle);
  }
  if (const auto sample = handshaking_.TakeRttSample()) flight_.OnHandshakeRtt(*sample, now);
  Follow(outcome);
}

void ConnectionImpl::HandleRefuse(Instant now, const wire::LongHeader& header, ByteSpan frames) {
  BeginEvent(now);
  if (state_ == State::kConnecting) Follow(handshaking_.HandleRefuse(now, header, frames));
}

void ConnectionImpl::HandleRetry(Instant now, ByteSpan cookie) {
  BeginEvent(now);
  if (state_ == State::kConnecting) handshaking_.HandleRetry(cookie);
}

void ConnectionImpl::Follow(const Handshaking::Outcome& outcome) {
  switch (outcome.next) {
    case Handshaking::Outcome::Next::kGoOn:
      return;
    case Handshaking::Outcome::Next::kConnected:
      if (is_client()) writer_.RequestPing();  // the server waits for a short packet
      return BecomeConnected();
    case Handshaking::Outcome::Next::kFailed:
      return FailHandshake(outcome.why);
    case Handshaking::Outcome::Next::kOver:
      return CloseNow(outcome.why);
  }
}

void ConnectionImpl::FailHandshake(const Status& why) {
  if (!is_client()) {
    handshaking_.SetFailure(why);
    return Close(why);
  }
  // The server, where it knows this client, need not wait for its time-out. Once is enough for a courtesy.
  closing_.Note(why);
  if (handshaking_.remote_id().value != 0) SetFinalDatagram();
  CloseNow(Status(why.code(), "server " + peer().ToString() + ": " + why.message()));
}

void ConnectionImpl::BecomeConnected() {
  state_ = State::kConnected;
  handshaking_.OnConnected();
  flight_.OnConnected(path_.datagram_bytes(), now_, security_->Unpredictable(skip_seed_));
  Introduce();
  path_.StartSearch(now_, handshaking_.peer_parameters()->max_datagram_bytes);
  announce_by_ = now_ + kMaxMtuWait;
  FollowPathMtu();
}

void ConnectionImpl::FollowPathMtu() {
  if (state_ != State::kConnected) return;
  path_.Update();
  path_.SetLongestChunk(windows_.outgoing().LongestChunk());
  flight_.SetMaxDatagram(path_.datagram_bytes());
  if (Status carries = path_.Check(); !carries.ok()) return Close(carries);
  if (path_.search_settled()) events_.Announce();
}

// --- Short packets ---

bool ConnectionImpl::Trusts(const Address& from) const {
  return from == path_.peer() && (state_ == State::kConnected || handshaking_.address_proved());
}

bool ConnectionImpl::HandleReset(ByteSpan datagram) {
  // One that is closing has its own reason, which the peer may have forgotten after it had read it.
  const bool ends = state_ == State::kClosing || state_ == State::kClosed;
  if (ends || !handshaking_.IsReset(datagram)) return false;
  CloseNow(Status(StatusCode::kUnavailable,
                  "server " + peer().ToString() +
                      " has forgotten this connection: it was restarted, or has given it up"));
  return true;
}

ConnectionImpl::ShortFate ConnectionImpl::HandleShort(Instant now, const Address& from,
                                                      const wire::ShortHeader& header,
                                                      MutableByteSpan datagram, const ReceiveInfo& info) {
  BeginEvent(now);
  if (state_ == State::kClosed) return ShortFate::kHandled;
  OpenedPacket packet;
  switch (reader_.Read(now, from, header, datagram, state_ == State::kConnected, &packet)) {
    case PacketReader::Verdict::kElsewhere:
      return ShortFate::kElsewhere;
    case PacketReader::Verdict::kLimited:
      return ShortFate::kLimited;
    case PacketReader::Verdict::kDropped:
      return ShortFate::kHandled;
    case PacketReader::Verdict::kMoved:
      FollowPathMtu();
      break;
    case PacketReader::Verdict::kOpened:
      break;
  }
  TakePacket(now, packet, datagram.size(), info);
  return ShortFate::kHandled;
}

void ConnectionImpl::TakePacket(Instant now, const OpenedPacket& packet, size_t datagram_bytes,
                                const ReceiveInfo& info) {
  if (!packet.IsWhole()) {
    return ProtocolViolation(Status(StatusCode::kProtocolViolation, "frames are longer than their packet"));
  }
  last_heard_ = now;
  silence_ = {};
  ++stats_.packets_received;
  stats_.bytes_received += datagram_bytes;
  const bool connecting = state_ == State::kConnecting;
  handshaking_.OnShort(now, connecting);
  if (connecting) {
    if (const auto sample = handshaking_.TakeRttSample()) flight_.OnHandshakeRtt(*sample, now);
    BecomeConnected();
    if (state_ != State::kConnected) return;
  }
  path_.OnPeerDatagram(static_cast<int64_t>(datagram_bytes), now);
  const PacketReader::Outcome outcome = reader_.Take(now, packet, state_ == State::kClosing, info);
  if (!outcome.status.ok()) return ProtocolViolation(outcome.status);
  if (outcome.fates) FollowPathMtu();
  if (outcome.close) HandlePeerClose(*outcome.close);
}

void ConnectionImpl::HandlePeerClose(const wire::CloseFrame& close) {
  if (state_ == State::kClosing) return CloseNow(closing_.why());
  const bool orderly = close.code == StatusCode::kOk;
  closing_.Note(orderly ? Status::Ok() : Status(close.code, Closing::ReasonOf(close)));
  SetFinalDatagram();
  CloseNow(closing_.why());
}

// --- Time ---

void ConnectionImpl::HandleTimeout(Instant now) {
  ForgiveStall(now);
  BeginEvent(now);
  if (state_ == State::kClosed) return;
  if (now >= IdleDeadline()) return CloseNow(WhySilent(now));
  if (state_ == State::kClosing) {
    if (closing_.Done(now)) CloseNow(closing_.why());
    return;
  }
  if (state_ == State::kConnecting) {
    Follow(handshaking_.OnTimeout(now));
    if (state_ != State::kConnecting) return;
  }
  if (writer_.OnTimeout(now)) FollowPathMtu();
  path_.OnTimeout(now);
  if (now >= SilenceDeadline()) {
    silence_.since = now;
    silence_.wants_new_path = true;
  }
  if (announce_by_ <= now && state_ == State::kConnected) events_.Announce();
  const bool silent = now - flight_.last_eliciting_sent() >= options_.keepalive;
  if (state_ == State::kConnected && !writer_.ping_due() && silent) {
    writer_.RequestPing();
    // A PING puts the probe timeout off, which by its back-off may be further away: then this is the probe.
    writer_.RepeatFrames();
  }
}

// Time in which this host did not run is no silence of the peer's: what that said is still to be read, or it
// stood still as well.
void ConnectionImpl::ForgiveStall(Instant now) {
  if (state_ != State::kConnected) return;
  // A deadline that waits for the socket is late without a stall: then this is called again and again.
  const Duration late = now - std::max(NextTimeout(), timed_out_at_);
  timed_out_at_ = now;
  if (late <= kStall) return;
  LH_REACHED("a timer is late: the host stood still");
  ++stats_.host_stalls;
  last_heard_ = std::min(now, last_heard_ + late);
}

Status ConnectionImpl::WhySilent(Instant now) const {
  if (state_ == State::kClosing) return closing_.why();
  const std::string silence = SecondsText(now - last_heard_);
  if (state_ == State::kConnected) {
    return Status(StatusCode::kPeerDead, peer().ToString() + " was silent for " + silence);
  }
  if (const auto& doubt = handshaking_.doubt()) {
    return Status(doubt->code(), "server " + peer().ToString() + ": " + doubt->message() +
                                     " (several have answered, and none of them with success)");
  }
  // A server that cannot open an INIT says so by REFUSE, as often as its rate allows. Any host can forge one.
  const bool refused = is_client() && stats_.key_refusals > 0;
  return Status(StatusCode::kUnavailable,
                "no answer from " + peer().ToString() + " within " + silence +
                    (refused ? ", but that it cannot open what is sent to it (another key?)" : ""));
}

Instant ConnectionImpl::IdleDeadline() const {
  const Instant idle = last_heard_ + idle_timeout_;
  return state_ == State::kConnecting ? std::min(idle, created_ + options_.handshake_timeout) : idle;
}

Instant ConnectionImpl::SilenceDeadline() const {
  if (state_ != State::kConnected || silence_.since == Instant::Infinite()) return Instant::Infinite();
  const Duration first = std::max<Duration>(kSilentPtos * flight_.Pto(), kLeastSilence);
  const int doublings = std::min(silence_.new_paths, kSilenceDoublings);
  return silence_.since + std::min<Duration>(first * (1 << doublings), kLongestSilence);
}

void ConnectionImpl::TakeNewPath() {
  if (!silence_.wants_new_path) return;
  LH_REACHED("a client takes another port");
  Stirred().silence_.wants_new_path = false;
  ++silence_.new_paths;
  ++stats_.ports_taken;
  flight_.ResetPtoBackoff();
  flight_.OnNewPort(now_, stats_.ports_taken);
  flight_.ProbeNow();  // what is in flight by the old path may fill the window
  writer_.RequestPing();
  writer_.RepeatFrames();
}

Instant ConnectionImpl::NextTimeout() const {
  if (state_ == State::kClosed) return Instant::Infinite();
  Instant next = IdleDeadline();
  if (state_ == State::kClosing) return std::min(next, closing_.Deadline());
  next = std::min({next, flight_.LossDeadline(), flight_.acks().Deadline(), SilenceDeadline()});
  if (state_ == State::kConnecting) return std::min(next, handshaking_.Deadline());
  if (!writer_.ping_due()) next = std::min(next, flight_.last_eliciting_sent() + options_.keepalive);
  const Instant announce_by = events_.announced() ? Instant::Infinite() : announce_by_;
  return std::min(
      {next, windows_.incoming().NextRepeat(), path_.Deadline(), announce_by, flight_.NextPacing(now_)});
}

void ConnectionImpl::HandleSendRefused(size_t datagram_bytes) {
  BeginEvent(now_);
  const auto bytes = static_cast<int64_t>(datagram_bytes);
  if (state_ == State::kConnected) {
    path_.OnSendRefused(bytes, now_);
    FollowPathMtu();
  } else if (state_ == State::kConnecting && is_client() && path_.OnInitRefused(bytes)) {
    handshaking_.SendAgain();
  }
}

// --- Sending ---

std::optional<Transmit> ConnectionImpl::PollTransmit(Instant now, MutableByteSpan buffer) {
  now_ = turn_.polled = now;
  NoteMoved();
  if (state_ == State::kClosed) return std::nullopt;
  if (writer_.HasPostponed()) return writer_.TakePostponed(buffer);
  const bool connected = state_ == State::kConnected;
  if (connected) {
    if (std::optional<Transmit> challenge = writer_.PollChallenge(now, buffer)) return challenge;
  }
  writer_.BeginBatch(connected && path_.marks_ecn());
  if (windows_.outgoing().TakeStarted()) flight_.OnWindowStart(now);
  flight_.OnPoll();
  if (connected) {
    writer_.UpdateKeysIfDue(now);
    if (std::optional<Transmit> probe = writer_.PollMtuProbe(now, buffer)) return probe;
  }
  return writer_.Batch(buffer, [&](MutableByteSpan out) { return BuildDatagram(now, out); });
}

size_t ConnectionImpl::BuildDatagram(Instant now, MutableByteSpan out) {
  if (state_ == State::kConnected) {
    if (Status usable = writer_.CheckKeys(); !usable.ok()) Close(usable);
  }
  switch (state_) {
    case State::kConnecting: {
      const size_t size = handshaking_.BuildLong(now, out);
      if (size > 0) ++stats_.packets_sent;
      stats_.bytes_sent += size;
      return size;
    }
    case State::kConnected: {
      const size_t size = writer_.Build(now, out);
      const bool asks = size > 0 && flight_.last_eliciting_sent() == now;
      if (may_take_ports_ && asks) silence_.since = std::min(silence_.since, now);
      return size;
    }
    case State::kClosing:
      if (!closing_.CopyDue(now)) return 0;
      closing_.OnCopySent(now, flight_.Pto());
      return BuildClose(out);
    case State::kClosed:
      break;
  }
  return 0;
}

size_t ConnectionImpl::BuildClose(MutableByteSpan out) {
  const MutableByteSpan place = out.first(std::min(out.size(), static_cast<size_t>(Path::kBaseDatagram)));
  if (handshaking_.protection() != nullptr) return writer_.BuildClose(closing_.Frame(), place);
  const size_t size = handshaking_.BuildClose(closing_.Frame(), place);
  if (size > 0) ++stats_.packets_sent;
  stats_.bytes_sent += size;
  return size;
}

}  // namespace longhaul::transport
