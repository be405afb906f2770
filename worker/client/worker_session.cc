#include "worker/client/worker_session.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/units_text.h"
#include "proto/utf8.h"

namespace longhaul::worker {
namespace {

using control::ControlMessage;

// A connection that is tried this long without an answer is given up for the next one, under the address that
// the name has then. An INIT is repeated meanwhile, so that a server is heard as soon as it is back.
constexpr Duration kAttempt = std::chrono::seconds(3);
// After an attempt that ends sooner.
constexpr Duration kBetweenAttempts = std::chrono::milliseconds(250);

// While the caller waits, a server that has died and is back is found by what it says to the next packet. A
// worker whose push has arrived sends none: it asks for a sign of life so often.
constexpr Duration kAskWhileWaiting = std::chrono::milliseconds(250);

// How operations end when this worker leaves.
Status LeftTheJob() { return {StatusCode::kCancelled, "this worker has left the job"}; }

// What its connection counts.
void AddConnection(const transport::ConnectionStats& c, ClientStats* stats) {
  ClientStats& s = *stats;
  s.packets_sent = c.packets_sent;
  s.packets_received = c.packets_received;
  s.packets_lost = c.packets_lost;
  s.retransmissions = c.retransmissions;
  s.repairs_sent = c.repairs_sent;
  s.repaired_chunks = c.chunks_repaired;
  s.lost_chunks = c.low_chunks_lost;
  s.pto_fired = c.pto_fired;
  s.datagrams_dropped = c.duplicates_dropped + c.bad_tag_dropped + c.malformed_dropped +
                        c.unknown_window_dropped + c.late_dropped;
  s.bytes_sent = ByteCount(static_cast<int64_t>(c.bytes_sent));
  s.bytes_received = ByteCount(static_cast<int64_t>(c.bytes_received));
  s.chunk_bytes_sent = ByteCount(static_cast<int64_t>(c.chunk_bytes_sent));
  s.chunk_bytes_received = ByteCount(static_cast<int64_t>(c.chunk_bytes_received));
  s.smoothed_rtt = c.smoothed_rtt;
  s.min_rtt = c.min_rtt;
  s.latest_rtt = c.latest_rtt;
  s.loss = c.loss;
  s.bandwidth = c.rate.bandwidth;
  const auto limited = [&c](transport::RateLimiter by) { return c.limited[static_cast<size_t>(by)]; };
  const transport::RateSnapshot& rate = c.rate;
  s.fit_floor = rate.fit.floor;
  s.fit_capacity = rate.fit.capacity;
  s.target_loss = rate.target_loss;
  s.fit_r_squared = rate.fit.r_squared;
  s.fit_samples = rate.fit.samples;
  s.fit_state = rate.fit.state;
  s.fit_basis = rate.fit.basis;
  s.rate_state = rate.state;
  s.limited_by_app = limited(transport::RateLimiter::kApp);
  s.limited_by_pacing = limited(transport::RateLimiter::kPacing);
  s.limited_by_cwnd = limited(transport::RateLimiter::kCwnd);
  s.limited_by_receive_window = limited(transport::RateLimiter::kReceiveWindow);
  s.limited_by_grant = limited(transport::RateLimiter::kGrant);
  s.limited_by_cap = limited(transport::RateLimiter::kCap);
}

}  // namespace

WorkerSession::WorkerSession(WorkerCoreOptions options) : link_(std::move(options)) {}

WorkerSession::~WorkerSession() = default;

void WorkerSession::Start(Instant now, transport::Connection* connection) {
  LH_CHECK(state_ == State::kConnecting);
  link_.now = now;
  link_.Open(connection);
  connect_deadline_ = now + link_.options.connect_timeout;
}

// --- Time and work ---

Instant WorkerSession::NextTimeout() const {
  if (link_.operations.HasCompleted()) return link_.now;
  const Instant waits = paused() ? Instant::Infinite() : deadlines_.NextTimeout();
  const Instant attempt = std::min(next_attempt_, attempt_deadline_);
  return std::min(
      {connect_deadline_, leave_deadline_, reconnect_deadline_, attempt, results_.NextTimeout(), waits});
}

void WorkerSession::HandleTimeout() {
  if (link_.now >= connect_deadline_) {
    const Duration limit = link_.options.connect_timeout;
    Fail(connected_ ? link_.Blame(StatusCode::kUnavailable,
                                  " did not let this worker join within " + SecondsText(limit) +
                                      (deadlines_.waiting().empty() ? "" : ": " + deadlines_.waiting()))
                    : Silence(limit));
  }
  if (link_.now >= leave_deadline_ && link_.connection() != nullptr) {
    leave_deadline_ = Instant::Infinite();
    link_.connection()->Close(Status::Ok());
    End(State::kLeft, LeftTheJob());
  }
  results_.HandleTimeout();
  HandleReconnectTimeout();
  if (CheckRunning().ok() && !paused()) deadlines_.HandleTimeout();
}

void WorkerSession::FinishEvent() {
  TakeFailure();
  StartWaiting();
  if (link_.connection() != nullptr) {
    const Duration usual = link_.options.connection.keepalive;
    link_.connection()->SetKeepalive(link_.operations.pending() > 0 ? std::min(usual, kAskWhileWaiting)
                                                                    : usual);
  }
  if (state_ != reported_state_) {
    reported_state_ = state_;
    if (state_listener_) state_listener_(state_);
  }
  link_.operations.RunCallbacks();
}

bool WorkerSession::HasWork() const {
  return pushes_.HasWork() || link_.operations.HasCompleted() || state_ != reported_state_;
}

void WorkerSession::Work() {
  pushes_.Work();
  FinishEvent();
}

void WorkerSession::StartWaiting() {
  if (state_ != State::kStarted) return;
  pushes_.StartWaiting();
  results_.StartWaiting();
}

// --- The connection's life ---

void WorkerSession::Handle(const transport::Event& event) {
  namespace ev = transport::event;
  struct Visitor {
    WorkerSession& self;
    void operator()(const ev::Connected&) { self.OnConnected(); }
    void operator()(const ev::ControlBytes& e) { self.OnControlBytes(e.bytes); }
    void operator()(const ev::ControlWritable&) { self.link_.FlushOutbox(); }
    void operator()(const ev::WindowOpened& e) {
      if (self.results_.OnWindowOpened(e)) return;
      self.link_.connection()->CloseWindow(e.key, wire::CloseReason::kExcluded);
    }
    void operator()(const ev::Chunk& e) {
      if (self.results_.OnChunk(e) == transport::ChunkVerdict::kTaken) return;
      self.link_.connection()->RefuseChunk(e.key, e.reliability, e.sequence);
    }
    void operator()(const ev::WindowState& e) { self.results_.OnWindowState(e); }
    void operator()(const ev::WindowClosed& e) { self.pushes_.OnWindowClosed(e); }
    void operator()(const ev::Closed& e) { self.OnClosed(e.why); }
    void operator()(const ev::Accepted&) {}  // a server's
    void operator()(const ev::HandshakeFailed&) {}
  };
  std::visit(Visitor{*this}, event);
  TakeFailure();
}

void WorkerSession::OnConnected() {
  connected_ = true;
  if (ended()) return;
  const WorkerCoreOptions& options = link_.options;
  ControlMessage message;
  control::Join& join = *message.mutable_join();
  join.set_job(options.job);
  join.set_rank(options.rank);
  join.set_world_size(options.world_size);
  if (options.incarnation) join.set_incarnation(*options.incarnation);
  join.set_site(options.site);
  join.set_weight(options.weight);
  join.set_session(options.session);
  join.set_map_epoch(options.map_epoch);
  join.set_server(options.server);
  join.set_knows_shards(true);
  join.set_takes_membership(true);
  join.set_takes_hand_over(options.on_hand_over != nullptr);
  link_.Send(message);
}

void WorkerSession::OnClosed(const Status& why) {
  link_.Lose();
  if (ended()) return;
  if (state_ == State::kLeaving) return End(State::kLeft, LeftTheJob());
  if (Reconnects(why)) return BeginReconnecting(why);
  const bool silence = why.code() == StatusCode::kPeerDead;
  const bool refused = link_.connection_stats().refusals > 0;  // it did answer
  if (!connected_ && !refused && (silence || why.code() == StatusCode::kUnavailable)) {
    Fail(Silence(link_.now - (connect_deadline_ - link_.options.connect_timeout)));
  } else if (silence) {
    const Duration own = link_.options.connection.idle_timeout;
    const Duration limit = welcomed_ ? std::min(link_.settings.idle_timeout, own) : own;
    Fail(link_.Blame(StatusCode::kPeerDead, " was silent for " + SecondsText(limit)));
  } else {
    Fail(why.ok() ? link_.Blame(StatusCode::kAborted, " closed the connection") : why);
  }
}

// --- A server that is lost ---

bool WorkerSession::Reconnects(const Status& why) const {
  if (link_.options.reconnect_timeout == Duration(0)) return false;
  if (!connected_ && !paused()) return false;  // a first attempt
  // What a replica has of a lossy downlink is not known to a server that was started again.
  if (welcomed_ && link_.settings.downlink == Downlink::kLossy) return false;
  return why.code() == StatusCode::kPeerDead || why.code() == StatusCode::kUnavailable;
}

void WorkerSession::BeginReconnecting(const Status& why) {
  const bool first = state_ != State::kReconnecting;  // a server that was started again has said so
  if (!resuming_) {
    lost_at_ = link_.now;
    reconnect_deadline_ = link_.now + link_.options.reconnect_timeout;
    Say(link_.ServerName() + " is lost: " + why.ToString() + "; waiting for it for " +
        SecondsText(link_.options.reconnect_timeout));
  }
  if (state_ != State::kReconnecting) {
    link_.DropOutbox();
    pushes_.OnConnectionLost();
    results_.OnConnectionLost();
    tensors_.OnConnectionLost();
    state_ = State::kReconnecting;
    resuming_ = true;
  }
  connected_ = false;
  reader_ = {};
  attempt_deadline_ = Instant::Infinite();
  next_attempt_ = link_.now + (first ? Duration(0) : kBetweenAttempts);
  if (link_.options.ask_address) link_.options.ask_address();
}

void WorkerSession::TakeNewPath() {
  if (link_.connection() == nullptr) return;
  Say(link_.ServerName() + " does not answer: this worker takes another port");
  link_.connection()->TakeNewPath();
}

void WorkerSession::OnServerMoved() {
  const bool asks = state_ == State::kReconnecting && link_.connection() != nullptr && !connected_;
  if (asks) attempt_deadline_ = link_.now;
}

bool WorkerSession::WantsConnection() const {
  return state_ == State::kReconnecting && link_.connection() == nullptr && link_.now >= next_attempt_;
}

void WorkerSession::Reopen(transport::Connection* connection) {
  LH_CHECK(state_ == State::kReconnecting);
  link_.Open(connection);
  next_attempt_ = Instant::Infinite();
  attempt_deadline_ = link_.now + kAttempt;
}

void WorkerSession::HandleReconnectTimeout() {
  if (link_.now >= reconnect_deadline_) {
    reconnect_deadline_ = Instant::Infinite();
    Fail(
        link_.Blame(StatusCode::kPeerDead, " has not come back within " + SecondsText(link_.now - lost_at_)));
  } else if (link_.now >= attempt_deadline_ && link_.connection() != nullptr) {
    attempt_deadline_ = Instant::Infinite();
    // One that has answered looks for the path's MTU, which may take as long again.
    const bool answered = link_.connection()->state() != transport::Connection::State::kConnecting;
    if (!answered) link_.connection()->Close(Status(StatusCode::kUnavailable, "no answer"));
  }
}

Status WorkerSession::CheckGoesOn(const control::Welcome& welcome) const {
  if (welcome.job_number() != job_) {
    return link_.Blame(
        StatusCode::kAborted,
        ", which is back, has another job now: that of this worker is gone (does the server run "
        "with --round-log and its --checkpoint-dir?)");
  }
  if (*wire::DecodeJobSpec(welcome.job_spec()) == link_.settings) return {};
  return link_.Blame(StatusCode::kSettingsMismatch, ", which is back, has other settings for the job");
}

void WorkerSession::Fail(const Status& why) {
  if (ended()) return;
  LH_CHECK(!why.ok());
  failure_ = why;
  // Before anything ends: the connection must not read from memory that its owner has back.
  if (link_.connection() != nullptr) link_.connection()->Close(why);
  End(State::kFailed, why);
}

void WorkerSession::TakeFailure() {
  if (!link_.failure().ok()) Fail(link_.failure());
}

void WorkerSession::End(State state, const Status& outcome) {
  state_ = state;
  connect_deadline_ = leave_deadline_ = Instant::Infinite();
  reconnect_deadline_ = next_attempt_ = attempt_deadline_ = Instant::Infinite();
  resuming_ = false;
  barriers_.End();
  clocks_.End();
  deadlines_.End();
  link_.DropOutbox();
  pushes_.End();
  results_.End();
  tensors_.End();
  link_.operations.FinishAll(outcome, link_.now, link_.rtt());
}

void WorkerSession::Leave(const Status& why) {
  if (ended() || state_ == State::kLeaving) return;
  if (link_.connection() == nullptr || !connected_) {
    if (link_.connection() != nullptr) link_.connection()->Close(why);
    return End(State::kLeft, LeftTheJob());
  }
  // Gradients on their way are given up: nothing may read the caller's memory when the operations have ended.
  pushes_.CancelWindows();
  End(State::kLeaving, LeftTheJob());
  ControlMessage message;
  message.mutable_leave()->set_code(static_cast<uint32_t>(why.code()));
  message.mutable_leave()->set_message(wire::Printable(why.message(), wire::kMaxTextBytes));
  link_.Send(message);
  leave_deadline_ = link_.now + link_.options.leave_timeout;
}

// --- Control messages in ---

void WorkerSession::OnControlBytes(ByteSpan bytes) {
  if (ended()) return;
  Result<std::vector<ControlMessage>> messages = reader_.Append(bytes);
  if (!messages.ok()) {
    return Fail(link_.Blame(messages.status().code(), ": " + messages.status().message()));
  }
  for (const ControlMessage& message : *messages) {
    if (ended()) return;
    HandleMessage(message);
    TakeFailure();
  }
}

void WorkerSession::HandleMessage(const ControlMessage& message) {
  if (state_ == State::kLeaving) return;  // nothing waits for it any more
  switch (message.message_case()) {
    case ControlMessage::kWelcome:
      return OnWelcome(message.welcome());
    case ControlMessage::kShardMap:
      return link_.OnShardMap(message.shard_map());
    case ControlMessage::kMembership:
      if (!welcomed_ || !link_.OnMembership(message.membership())) Fail(link_.Unexpected("Membership"));
      return;
    case ControlMessage::kHandOver:
      if (!link_.options.on_hand_over) return Fail(link_.Unexpected("HandOver"));
      return link_.options.on_hand_over(message.hand_over().phase(), message.hand_over().round());
    case ControlMessage::kRefused:
      link_.first_server = message.refused().first_server();
      return Fail(link_.Blame(static_cast<StatusCode>(message.refused().code()),
                              " refuses this worker: " + message.refused().message()));
    case ControlMessage::kStart:
      return OnStart(message.start());
    case ControlMessage::kDeclared:
      return OnDeclared(message.declared());
    case ControlMessage::kPullRefused:
      return results_.OnPullRefused(message.pull_refused());
    case ControlMessage::kPushTaken:
      return pushes_.OnPushTaken(message.push_taken());
    case ControlMessage::kRoundReport:
      return results_.OnRoundReport(message.round_report());
    case ControlMessage::kLeave:
      return OnServerLeave(message.leave());
    case ControlMessage::kWaiting:
      return OnWaiting(message.waiting());
    case ControlMessage::kClockReply:
      return clocks_.OnReply(message.clock_reply());
    case ControlMessage::kBarrierDone:
      return barriers_.OnDone(message.barrier_done());
    default:
      Fail(link_.Blame(StatusCode::kProtocolViolation, " sent a message that only workers send"));
  }
}

void WorkerSession::OnDeclared(const control::Declared& declared) {
  const auto answer = tensors_.OnDeclared(declared);
  if (!answer) return;
  clocks_.Send(answer->handle);
  if (answer->send_initial) return pushes_.StartInitial(answer->handle);
  pushes_.OnDeclaredAgain(answer->handle, declared);
}

void WorkerSession::OnWelcome(const control::Welcome& welcome) {
  if (state_ != State::kConnecting && state_ != State::kReconnecting)
    return Fail(link_.Unexpected("Welcome"));
  if (welcomed_) {
    if (Status goes_on = CheckGoesOn(welcome); !goes_on.ok()) return Fail(goes_on);
  }
  link_.settings = *wire::DecodeJobSpec(welcome.job_spec());  // the reader has checked it
  link_.connection()->SetLossLimits(transport::LossLimits::Of(link_.settings));
  welcomed_ = true;
  job_ = welcome.job_number();
  state_ = State::kJoined;
  connect_deadline_ = reconnect_deadline_ = attempt_deadline_ = Instant::Infinite();
  link_.OnShardMap(welcome.shard_map());
  if (!welcome.notice().empty()) Say(welcome.notice());
}

void WorkerSession::Say(const std::string& text) const {
  if (link_.options.say) link_.options.say(text);
}

void WorkerSession::OnStart(const control::Start& start) {
  if (state_ != State::kJoined) return Fail(link_.Unexpected("Start"));
  const auto symbol_bytes = static_cast<uint16_t>(start.symbol_bytes());
  if (started_ && symbol_bytes != link_.symbol_bytes) {
    return Fail(link_.Blame(StatusCode::kSettingsMismatch,
                            ", which is back, has chunks of " + std::to_string(symbol_bytes) +
                                " bytes, and the job had " + std::to_string(link_.symbol_bytes)));
  }
  link_.symbol_bytes = symbol_bytes;
  state_ = State::kStarted;
  tensors_.OnStart();
  barriers_.OnStart();
  const bool is_back = std::exchange(resuming_, false);
  if (is_back) {
    ++link_.totals.reconnections;
    Say(link_.ServerName() + " is back after " + SecondsText(link_.now - lost_at_) + ": the job goes on");
  }
  if (!std::exchange(started_, true)) return deadlines_.OnStart();
  deadlines_.OnResumed();
}

void WorkerSession::OnWaiting(const control::Waiting& waiting) {
  Say(waiting.message());
  deadlines_.OnWaiting(waiting.message());
}

void WorkerSession::OnServerLeave(const control::Leave& leave) {
  if (leave.code() != 0) {
    return Fail(link_.Blame(StatusCode::kAborted, " ended the job: " + leave.message()));
  }
  if (link_.connection() != nullptr) link_.connection()->Close(Status::Ok());
  End(State::kLeft, link_.Blame(StatusCode::kAborted, " says that the job is over: " + leave.message()));
}

// --- Requests ---

void WorkerSession::Declare(const Declaration& declaration, DeclareCallback callback) {
  const auto begun =
      tensors_.Declare(declaration, std::move(callback), CheckRunning(), state_ == State::kStarted);
  if (!begun) return;
  const auto handle = begun->second;
  deadlines_.Begin({begun->first, [this, handle] { return tensors_.at(handle).declare_request; },
                    [this, handle](const Status& outcome) { tensors_.Finish(handle, outcome); }});
}

void WorkerSession::Push(TensorHandle handle, std::span<const float> gradient, Callback callback,
                         float weight) {
  const auto operation = link_.Begin(CheckPush(handle, gradient.size(), weight), std::move(callback));
  if (!operation) return;
  pushes_.Add({*operation, handle, gradient, {}, WeightOr(weight)});
  deadlines_.Begin({*operation, {}, {}});
  StartWaiting();
}

void WorkerSession::PushPull(TensorHandle handle, std::span<const float> gradient, std::span<float> out,
                             Callback callback, float weight) {
  Status refusal = CheckPush(handle, gradient.size(), weight);
  if (refusal.ok()) refusal = CheckRequest(handle, out.size());
  const auto operation = link_.Begin(refusal, std::move(callback));
  if (!operation) return;
  pushes_.Add({*operation, handle, gradient, out, WeightOr(weight)});
  deadlines_.Begin({*operation, {}, {}});
  StartWaiting();
}

void WorkerSession::Clock(TensorHandle handle, ClockCallback callback) {
  Status refusal = CheckRunning();
  if (refusal.ok()) refusal = tensors_.CheckDeclared(handle);
  if (const auto operation = clocks_.Ask(handle, std::move(callback), refusal))
    deadlines_.Begin({*operation, {}, {}});
}

void WorkerSession::Pull(TensorHandle handle, std::span<float> out, const PullOptions& options,
                         Callback callback) {
  const auto operation = link_.Begin(CheckRequest(handle, out.size()), std::move(callback));
  if (!operation) return;
  results_.AddPull({.operation = *operation,
                    .handle = handle,
                    .out = out,
                    .min_round = options.min_round,
                    .max_staleness = options.max_staleness});
  deadlines_.Begin({*operation, [this, id = *operation] { return results_.RequestOf(id); },
                    [this, id = *operation](const Status& outcome) { results_.DropPull(id, outcome); }});
  StartWaiting();
}

void WorkerSession::SetScores(TensorHandle handle, std::vector<float> scores) {
  if (handle >= tensors_.size() || !tensors_.at(handle).pipeline) return;
  tensors_.at(handle).pipeline->SetScores(std::move(scores));
}

void WorkerSession::Barrier(const std::string& name, Callback callback) {
  barriers_.Begin(name, std::move(callback), CheckRunning(), state_ == State::kStarted);
}

void WorkerSession::AnswerHandOver(uint32_t phase, uint64_t round) {
  if (!CheckRunning().ok() || !connected_) return;
  ControlMessage message;
  message.mutable_hand_over()->set_phase(phase);
  message.mutable_hand_over()->set_round(round);
  link_.Send(message);
}

// --- Questions ---

Status WorkerSession::CheckRunning() const {
  if (state_ == State::kFailed) return failure_;
  if (state_ == State::kLeaving || state_ == State::kLeft) {
    return {StatusCode::kFailedPrecondition, "this worker has left the job"};
  }
  return Status::Ok();
}

Status WorkerSession::CheckRequest(TensorHandle handle, size_t elements) const {
  Status running = CheckRunning();
  return running.ok() ? tensors_.CheckElements(handle, elements) : running;
}

Status WorkerSession::CheckPush(TensorHandle handle, size_t elements, float weight) const {
  if (Status refusal = CheckRequest(handle, elements); !refusal.ok()) return refusal;
  if (link_.settings.policy != LossPolicy::kShift || WeightOr(weight) == link_.options.weight) return {};
  return {StatusCode::kInvalidArgument, "with policy shift every contribution has the connection's weight"};
}

Status WorkerSession::Silence(Duration limit) const {
  return {StatusCode::kUnavailable,
          "no answer from " + link_.ServerName() + " within " + SecondsText(limit) + "; " + JoinHint()};
}

std::string WorkerSession::JoinHint() const {
  return connected_ ? "" : WhyNoAnswer(link_.connection_stats(), probe_);
}

std::span<const float> WorkerSession::residual(TensorHandle handle) const {
  if (handle >= tensors_.size() || !tensors_.at(handle).pipeline) return {};
  return tensors_.at(handle).pipeline->residual();
}

ClientStats WorkerSession::stats() const {
  ClientStats s = link_.totals;
  for (TensorHandle handle = 0; handle < tensors_.size(); ++handle) {
    const TensorState& tensor = tensors_.at(handle);
    if (tensor.pipeline) s.debts_dropped += tensor.pipeline->debts_dropped();
    if (!tensor.replica) continue;
    s.state_hashes_agreed += tensor.replica->stats().agreed;
    s.state_hash_mismatches += tensor.replica->stats().mismatches;
  }
  s.operations_started = link_.operations.started();
  s.operations_succeeded = link_.operations.succeeded();
  s.operations_failed = link_.operations.failed();
  AddConnection(link_.connection_stats(), &s);
  return s;
}

}  // namespace longhaul::worker
