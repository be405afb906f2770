#include "worker/worker_session.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "codec/loss_policy.h"
#include "codec/priority.h"
#include "proto/utf8.h"

namespace longhaul::worker {
namespace {

using control::ControlMessage;

// "10 s", "0.25 s".
std::string Seconds(Duration d) {
  std::string text = std::to_string(std::chrono::duration<double>(d).count());
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " s";
}

JobSettings FromWelcome(const control::Welcome& welcome) {
  JobSettings settings;
  settings.rank = welcome.rank();
  settings.world_size = welcome.world_size();
  settings.policy = welcome.policy();
  settings.high_share = welcome.high_share();
  settings.bubble_threshold = welcome.bubble_threshold();
  settings.close_ratio = welcome.close_ratio();
  settings.fec_k = welcome.fec_k();
  settings.fec_depth = welcome.fec_depth();
  settings.idle_timeout = std::chrono::milliseconds(welcome.idle_timeout_ms());
  settings.seed = welcome.seed();
  settings.shift_alpha = welcome.shift_alpha();
  settings.priority = welcome.priority();
  settings.high_energy = welcome.high_energy();
  settings.topk_share = welcome.topk_share();
  settings.downlink = welcome.downlink();
  settings.hash_rounds = welcome.hash_rounds();
  return settings;
}

// A worker that does not know the job's policy would silently send what the server compensates as well.
Status CheckKnown(const JobSettings& settings) {
  if (const auto policy = codec::ParseLossPolicy(settings.policy); !policy.ok()) return policy.status();
  if (const auto priority = codec::ParsePriorityPolicy(settings.priority); !priority.ok()) {
    return priority.status();
  }
  return Status::Ok();
}

}  // namespace

WorkerSession::WorkerSession(WorkerCoreOptions options)
    : options_(std::move(options)), operations_(options_.max_operations) {}

WorkerSession::~WorkerSession() = default;

void WorkerSession::Start(Instant now, transport::Connection* connection) {
  LH_CHECK(connection_ == nullptr && state_ == State::kConnecting);
  now_ = now;
  connection_ = connection;
  server_name_ = connection->peer().ToString();
  connect_deadline_ = now + options_.connect_timeout;
}

// --- Time ---

Instant WorkerSession::NextTimeout() const {
  if (operations_.HasCompleted()) return now_;
  return std::min({connect_deadline_, leave_deadline_, NextWindowCheck()});
}

void WorkerSession::HandleTimeout() {
  if (now_ >= connect_deadline_) {
    Fail(connected_
             ? Status(StatusCode::kUnavailable, ServerName() + " did not let this worker join within " +
                                                    Seconds(options_.connect_timeout))
             : Status(StatusCode::kUnavailable, Silence(options_.connect_timeout)));
  }
  if (now_ >= leave_deadline_ && connection_ != nullptr) {
    leave_deadline_ = Instant::Infinite();
    connection_->Close(Status::Ok());
    End(State::kLeft, Status(StatusCode::kCancelled, "this worker has left the job"));
  }
  std::vector<transport::WindowKey> due;
  for (const auto& [key, use] : incoming_) {
    if (use.check_at <= now_) due.push_back(key);
  }
  for (const transport::WindowKey key : due) {
    if (connection_ != nullptr) OnWindowProgress(*connection_, key);
  }
}

void WorkerSession::Settle() {
  StartWaiting();
  if (state_ != told_state_) {
    told_state_ = state_;
    if (state_listener_) state_listener_(state_);
  }
  operations_.RunCallbacks();
}

// --- The connection's life ---

void WorkerSession::OnConnected(transport::Connection& connection) {
  (void)connection;
  connected_ = true;
  if (!ended()) SendJoin();
}

void WorkerSession::OnClosed(transport::Connection& connection, const Status& why) {
  last_connection_stats_ = connection.stats();
  connection_ = nullptr;
  if (ended()) return;
  if (state_ == State::kLeaving) {
    End(State::kLeft, Status(StatusCode::kCancelled, "this worker has left the job"));
    return;
  }
  const bool silence = why.code() == StatusCode::kPeerDead;
  const bool refused = last_connection_stats_.refusals > 0;  // it did answer
  if (!connected_ && !refused && (silence || why.code() == StatusCode::kUnavailable)) {
    Fail(Status(StatusCode::kUnavailable, Silence(now_ - (connect_deadline_ - options_.connect_timeout))));
  } else if (silence) {
    const Duration limit = welcomed_ ? std::min(settings_.idle_timeout, options_.connection.idle_timeout)
                                     : options_.connection.idle_timeout;
    Fail(Status(StatusCode::kPeerDead, ServerName() + " was silent for " + Seconds(limit)));
  } else if (why.ok()) {
    Fail(Status(StatusCode::kAborted, ServerName() + " closed the connection"));
  } else {
    Fail(why);
  }
}

void WorkerSession::Fail(const Status& why) {
  if (ended()) return;
  LH_CHECK(!why.ok());
  failure_ = why;
  // Before anything ends: the connection must not read from memory that its owner has back.
  if (connection_ != nullptr) connection_->Close(why);
  End(State::kFailed, why);
}

void WorkerSession::End(State state, const Status& outcome) {
  state_ = state;
  connect_deadline_ = leave_deadline_ = Instant::Infinite();
  waiting_pushes_.clear();
  waiting_pulls_.clear();
  active_pulls_.clear();
  barriers_.clear();
  before_start_.clear();
  outbox_.clear();
  outgoing_.clear();
  incoming_.clear();
  active_pushes_ = 0;
  for (auto& tensor : tensors_) {
    tensor->active.reset();
    tensor->prepared.reset();
    tensor->initial_waits = false;
    tensor->declaring.clear();
    if (tensor->pipeline) tensor->pipeline->Abandon();
  }
  operations_.FinishAll(outcome, now_, rtt());
}

void WorkerSession::Leave(const Status& why) {
  if (ended() || state_ == State::kLeaving) return;
  if (connection_ == nullptr || !connected_) {
    if (connection_ != nullptr) connection_->Close(why);
    End(State::kLeft, Status(StatusCode::kCancelled, "this worker has left the job"));
    return;
  }
  // Gradients on their way are given up: nothing may read the caller's memory when the operations have ended.
  for (const auto& [key, handle] : outgoing_) connection_->CancelWindow(key);
  End(State::kLeaving, Status(StatusCode::kCancelled, "this worker has left the job"));
  ControlMessage message;
  message.mutable_leave()->set_code(static_cast<uint32_t>(why.code()));
  message.mutable_leave()->set_message(wire::Printable(why.message(), wire::kMaxTextBytes));
  SendMessage(message);
  leave_deadline_ = now_ + options_.leave_timeout;
}

// --- Control messages in ---

void WorkerSession::OnControlData(transport::Connection& connection, ByteSpan bytes) {
  (void)connection;
  if (ended()) return;
  Result<std::vector<ControlMessage>> messages = reader_.Append(bytes);
  if (!messages.ok()) {
    Fail(Status(messages.status().code(), ServerName() + ": " + messages.status().message()));
    return;
  }
  for (const ControlMessage& message : *messages) {
    if (ended()) return;
    HandleMessage(message);
  }
}

void WorkerSession::HandleMessage(const ControlMessage& message) {
  if (state_ == State::kLeaving) return;  // whatever it is, nobody waits for it
  switch (message.message_case()) {
    case ControlMessage::kWelcome:
      return OnWelcome(message.welcome());
    case ControlMessage::kRefused:
      return Fail(Status(static_cast<StatusCode>(message.refused().code()),
                         ServerName() + " refuses this worker: " + message.refused().message()));
    case ControlMessage::kStart:
      return OnStart(message.start());
    case ControlMessage::kDeclared:
      return OnDeclared(message.declared());
    case ControlMessage::kPullRefused:
      return OnPullRefused(message.pull_refused());
    case ControlMessage::kPushTaken:
      return OnPushTaken(message.push_taken());
    case ControlMessage::kRoundReport:
      return OnRoundReport(message.round_report());
    case ControlMessage::kLeave:
      return OnServerLeave(message.leave());
    case ControlMessage::kBarrierDone: {
      const auto it = barriers_.find(message.barrier_done().request());
      if (it == barriers_.end()) return;
      operations_.Finish(it->second, Status::Ok(), now_, rtt());
      barriers_.erase(it);
      return;
    }
    default:
      Fail(Status(StatusCode::kProtocolViolation, ServerName() + " sent a message that only workers send"));
  }
}

void WorkerSession::OnWelcome(const control::Welcome& welcome) {
  if (state_ != State::kConnecting) return Fail(Unexpected("Welcome"));
  settings_ = FromWelcome(welcome);
  if (const Status known = CheckKnown(settings_); !known.ok()) {
    return Fail(Status(StatusCode::kSettingsMismatch, ServerName() +
                                                          " runs its job in a way unknown to this worker, " +
                                                          known.message() + ": are both of one version?"));
  }
  welcomed_ = true;
  state_ = State::kJoined;
  connect_deadline_ = Instant::Infinite();
}

void WorkerSession::OnStart(const control::Start& start) {
  if (state_ != State::kJoined) return Fail(Unexpected("Start"));
  if (start.symbol_bytes() > connection_->MaxChunkBytes()) {
    return Fail(Status(StatusCode::kSettingsMismatch,
                       ServerName() + " wants chunks of " + std::to_string(start.symbol_bytes()) +
                           " bytes, this path carries " + std::to_string(connection_->MaxChunkBytes())));
  }
  symbol_bytes_ = static_cast<uint16_t>(start.symbol_bytes());
  state_ = State::kStarted;
  for (TensorHandle handle = 0; handle < tensors_.size(); ++handle) SendDeclare(handle);
  for (const ControlMessage& message : before_start_) SendMessage(message);
  before_start_.clear();
}

void WorkerSession::OnServerLeave(const control::Leave& leave) {
  if (leave.code() != 0) {
    return Fail(Status(StatusCode::kAborted, ServerName() + " ended the job: " + leave.message()));
  }
  if (connection_ != nullptr) connection_->Close(Status::Ok());
  End(State::kLeft,
      Status(StatusCode::kAborted, ServerName() + " says that the job is over: " + leave.message()));
}

Status WorkerSession::Unexpected(const std::string& message) const {
  return {StatusCode::kProtocolViolation, ServerName() + " sent " + message + " at the wrong time"};
}

// --- Control messages out ---

void WorkerSession::SendJoin() {
  ControlMessage message;
  control::Join& join = *message.mutable_join();
  join.set_job(options_.job);
  join.set_rank(options_.rank);
  join.set_world_size(options_.world_size);
  join.set_incarnation(options_.incarnation);
  join.set_site(options_.site);
  join.set_weight(options_.weight);
  SendMessage(message);
}

void WorkerSession::SendMessage(const ControlMessage& message) {
  if (connection_ == nullptr) return;
  outbox_.push_back(wire::EncodeControlMessage(message));
  FlushOutbox();
}

void WorkerSession::FlushOutbox() {
  while (!outbox_.empty() && connection_ != nullptr) {
    const Status status = connection_->SendControl(outbox_.front());
    if (status.code() == StatusCode::kResourceExhausted) return;  // OnControlWritable comes
    if (!status.ok()) return outbox_.clear();                     // the connection is ending; OnClosed comes
    outbox_.pop_front();
  }
}

void WorkerSession::OnControlWritable(transport::Connection& connection) {
  (void)connection;
  FlushOutbox();
}

void WorkerSession::Barrier(const std::string& name, Callback callback) {
  if (Status s = CheckRunning(); !s.ok()) return operations_.Refuse(std::move(callback), s);
  if (name.empty() || name.size() > wire::kMaxNameBytes) {
    return operations_.Refuse(std::move(callback),
                              Status(StatusCode::kInvalidArgument, "a barrier's name has 1..256 bytes"));
  }
  if (!wire::IsPrintable(name)) {
    return operations_.Refuse(std::move(callback), Status(StatusCode::kInvalidArgument,
                                                          "a barrier's name has no control characters"));
  }
  const OperationId operation = operations_.Begin(now_, std::move(callback));
  if (!operations_.IsPending(operation)) return;
  ControlMessage message;
  message.mutable_barrier()->set_request(next_request_);
  message.mutable_barrier()->set_name(name);
  barriers_[next_request_++] = operation;
  if (state_ == State::kStarted) {
    SendMessage(message);
  } else {
    before_start_.push_back(message);
  }
}

// --- Questions ---

Status WorkerSession::CheckRunning() const {
  if (state_ == State::kFailed) return failure_;
  if (state_ == State::kLeaving || state_ == State::kLeft) {
    return {StatusCode::kFailedPrecondition, "this worker has left the job"};
  }
  return Status::Ok();
}

Duration WorkerSession::rtt() const {
  return connection_ != nullptr ? connection_->stats().smoothed_rtt : last_connection_stats_.smoothed_rtt;
}

std::string WorkerSession::ServerName() const { return "server " + server_name_; }

std::string WorkerSession::Silence(Duration limit) const {
  return "no answer from " + ServerName() + " within " + Seconds(limit) +
         "; is longhaul-server running there, with the same key (or both without one), and does a firewall "
         "let UDP through?";
}

ClientStats WorkerSession::stats() const {
  const transport::ConnectionStats c = connection_ != nullptr ? connection_->stats() : last_connection_stats_;
  ClientStats s = totals_;
  for (const auto& tensor : tensors_)
    s.debts_dropped += tensor->pipeline ? tensor->pipeline->debts_dropped() : 0;
  for (const auto& tensor : tensors_) {
    if (!tensor->replica) continue;
    s.state_hashes_agreed += tensor->replica->stats().agreed;
    s.state_hash_mismatches += tensor->replica->stats().mismatches;
  }
  s.operations_started = operations_.started();
  s.operations_succeeded = operations_.succeeded();
  s.operations_failed = operations_.failed();
  s.packets_sent = c.packets_sent;
  s.packets_received = c.packets_received;
  s.packets_lost = c.packets_lost;
  s.retransmissions = c.retransmissions;
  s.repairs_sent = c.repair_sent;
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
  s.rate_state = rate.state;
  s.limited_by_app = limited(transport::RateLimiter::kApp);
  s.limited_by_pacing = limited(transport::RateLimiter::kPacing);
  s.limited_by_cwnd = limited(transport::RateLimiter::kCwnd);
  s.limited_by_receive_window = limited(transport::RateLimiter::kReceiveWindow);
  s.limited_by_grant = limited(transport::RateLimiter::kGrant);
  s.limited_by_cap = limited(transport::RateLimiter::kCap);
  return s;
}

}  // namespace longhaul::worker
