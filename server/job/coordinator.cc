#include "server/job/coordinator.h"

#include <algorithm>
#include <utility>

#include "base/reached.h"
#include "base/units_text.h"
#include "server/job/authorization.h"

namespace longhaul::server {
using control::ControlMessage;

Coordinator::Coordinator(ServerSettings settings, ServerEvents* events,
                         std::function<std::string(const ServerStats&)> status_json, ByteCount receive_window,
                         Guests* guests, ImageKeeper* images)
    : settings_(std::move(settings)),
      events_(events),
      status_(std::move(status_json)),
      membership_(settings_.job, settings_.world_size, settings_.min_workers, settings_.max_weight_share,
                  settings_.start_workers, settings_.min_incarnation),
      guests_(guests),
      images_(images),
      guest_desk_(guests, events),
      server_desk_(settings_, this, events),
      hand_over_(settings_, membership_, server_desk_, this, events),
      strangers_(settings_.world_size),
      roll_(&membership_, this),
      grants_(settings_.grants, settings_.world_size, receive_window),
      by_rank_(settings_.world_size, nullptr),
      barriers_(settings_.world_size),
      record_(settings_.world_size) {
  access_.Replace(settings_.access, &membership_);
  if (const auto run = images ? images->resumed() : std::nullopt)
    membership_.GoOn(run->sessions, settings_.quorum);
}

Coordinator::~Coordinator() = default;

// --- Connections ---

// An event of a connection that we know, to the method for it.
struct Coordinator::Routing {
  Coordinator& self;
  Peer& peer;
  void operator()(const transport::event::Connected&) {
    peer.connected = true;
    peer.accepted_at = self.now_;
  }
  void operator()(const transport::event::ControlBytes& e) { self.OnControlBytes(peer, e.bytes); }
  void operator()(const transport::event::WindowOpened& e) {
    if (!self.OnWindowOpened(peer, e).ok()) {
      peer.connection->CloseWindow(e.key, wire::CloseReason::kExcluded);
    }
  }
  void operator()(const transport::event::Chunk& e) {
    if (self.OnChunk(peer, e) == transport::ChunkVerdict::kRefused) {
      peer.connection->RefuseChunk(e.key, e.reliability, e.sequence);
    }
  }
  void operator()(const transport::event::WindowState& e) { self.OnWindowState(peer, e); }
  void operator()(const transport::event::WindowClosed& e) {
    if (peer.joined() && self.engine_) self.engine_->OnOutgoingClosed(peer, e.key, *e.receipt);
  }
  void operator()(const auto&) {}  // handled above, or nothing is sent that could not be
};

void Coordinator::Handle(transport::Connection* connection, const transport::Event& event) {
  namespace ev = transport::event;
  if (const auto* failed = std::get_if<ev::HandshakeFailed>(&event)) {
    if (events_) events_->OnHandshakeFailed(failed->peer, failed->why);
    return;
  }
  if (std::holds_alternative<ev::Accepted>(event)) return OnAccepted(*connection);
  const auto known = peer_of_.find(connection);
  if (known == peer_of_.end()) return;  // it was refused
  Peer& peer = *known->second;
  if (const auto* closed = std::get_if<ev::Closed>(&event)) return OnClosed(peer, closed->why);
  peer.last_heard = now_;
  std::visit(Routing{*this, peer}, event);
}

void Coordinator::OnAccepted(transport::Connection& connection) {
  if (shutting_down_) {
    return connection.Close(Status(StatusCode::kUnavailable, "the server takes no connections now"));
  }
  if (Peer* displaced = strangers_.Displaced(peers_, connection)) {
    Disconnect(*displaced,
               Status(StatusCode::kResourceExhausted, "there are too many connections that have not joined"));
  }
  auto peer = std::make_unique<Peer>(&connection);
  peer->since = peer->accepted_at = peer->last_heard = now_;
  peer_of_[&connection] = peer.get();
  peers_.push_back(std::move(peer));
  CheckAccess(*peers_.back());  // a reload may have come between its handshake's begin and end
  next_tick_ = std::min(next_tick_, now_ + kTick);
}

void Coordinator::OnClosed(Peer& peer, const Status& why) {
  // Its successor is at the door: the rank is not lost.
  if (peer.joined()) {
    const auto heir = successions_.HolderGone(peer, now_);
    if (heir && heir->newcomer->phase == Peer::Phase::kNew) OnJoin(*heir->newcomer, heir->join, true);
  }
  const Status silent(StatusCode::kAborted, "closed its connection without leaving");
  if (peer.joined()) MemberGone(peer, why.ok() ? silent : why);
  guest_desk_.Remove(peer);
  server_desk_.Forget(peer, why);
  hand_over_.Forget(peer);
  successions_.Forget(peer);
  peer_of_.erase(peer.connection);
  std::erase_if(peers_, [&peer](const auto& p) { return p.get() == &peer; });
}

void Coordinator::OnControlBytes(Peer& peer, ByteSpan bytes) {
  if (peer.phase == Peer::Phase::kLeaving) return;
  const auto messages = peer.control.Append(bytes);
  if (!messages.ok()) return Disconnect(peer, messages.status());
  for (const ControlMessage& message : *messages) {
    if (peer.phase == Peer::Phase::kLeaving) return;
    OnMessage(peer, message);
  }
}

Status Coordinator::OnWindowOpened(Peer& peer, const transport::event::WindowOpened& opened) {
  // A refusal could arrive before the message that says why the job is over; the window ends with the
  // connection, soon.
  if (peer.phase == Peer::Phase::kLeaving) return {};
  if (peer.phase == Peer::Phase::kGuest) return guests_->OnWindowOpened(peer, opened.key, opened.open);
  if (!peer.joined()) Disconnect(peer, Status(StatusCode::kProtocolViolation, "a window before Join"));
  if (!peer.joined() || !engine_) return {StatusCode::kFailedPrecondition, "no job has started here"};
  const Status taken = engine_->OnWindowOpened(peer, opened.key, opened.open);
  grants_.OnWindow(now_, peer.rank);
  return taken;
}

transport::ChunkVerdict Coordinator::OnChunk(Peer& peer, const transport::event::Chunk& chunk) {
  if (peer.phase == Peer::Phase::kGuest) {
    guests_->OnChunk(peer, chunk);
    return transport::ChunkVerdict::kTaken;
  }
  if (!peer.joined() || !engine_) return transport::ChunkVerdict::kRefused;
  return engine_->OnChunk(peer, chunk.key, chunk.reliability == wire::ReliabilityClass::kHigh, chunk.bytes,
                          chunk.repaired);
}

void Coordinator::OnWindowState(Peer& peer, const transport::event::WindowState& state) {
  if (peer.phase == Peer::Phase::kGuest) return guests_->OnWindowState(peer, state);
  if (!peer.joined() || !engine_) return;
  engine_->OnWindowState(peer, state);
  grants_.OnWindow(now_, peer.rank);
}

// --- RoundEngineHost ---

void Coordinator::Send(Peer& peer, const ControlMessage& message) {
  if (peer.connection->state() != transport::Connection::State::kConnected) return;
  const Status sent = peer.connection->SendControl(wire::EncodeControlMessage(message));
  if (sent.code() == StatusCode::kResourceExhausted) {
    Disconnect(peer, Status(StatusCode::kResourceExhausted, "the peer does not read its control messages"));
  }
}

void Coordinator::Disconnect(Peer& peer, const Status& why) {
  if (!peer.joined() && peer.phase != Peer::Phase::kLeaving) {
    record_.OnRefused();
    if (events_) events_->OnRefused(peer.connection->peer(), IdentityText(peer.connection->identity()), why);
    guest_desk_.Remove(peer);
    peer.phase = Peer::Phase::kLeaving;
  }
  peer.connection->Admit(false);
  // A member stays one until its connection is over: its Closed follows.
  LH_REACHED("the server disconnects a peer");
  peer.connection->Close(why);
}

// --- Messages ---

void Coordinator::OnMessage(Peer& peer, const ControlMessage& message) {
  if (message.has_status_request()) return OnStatusRequest(peer, message.status_request());
  if (peer.joined()) return OnMemberMessage(peer, message);
  if (peer.phase == Peer::Phase::kGuest) return OnGuestMessage(peer, message);
  if (message.has_leave()) return Dismiss(peer, LeaveMessage(Status()), Status());
  if (!server_desk_.Knows(peer)) {
    if (message.has_bench_join()) return OnBenchJoin(peer, message.bench_join());
    if (message.has_server_join()) return OnServerJoin(peer, message.server_join());
    if (message.has_join()) return OnJoin(peer, message.join());
    if (message.has_kick_request()) return OnKick(peer, message.kick_request().rank());
    if (message.has_hand_over_request())
      return hand_over_.OnRequest(peer, message.hand_over_request(), images_, engine_ != nullptr, now_);
  }
  Disconnect(peer, Status(StatusCode::kProtocolViolation, "the first message must be Join"));
}

void Coordinator::OnMemberMessage(Peer& peer, const ControlMessage& message) {
  if (message.has_leave()) return OnLeave(peer, message.leave());
  if (message.has_give_up()) return OnGiveUp(peer, message.give_up());
  if (message.has_hand_over()) return hand_over_.OnAnswer(peer, message.hand_over());
  const bool known = message.has_declare() || message.has_pull_request() || message.has_barrier() ||
                     message.has_clock_request();
  if (!known || !engine_) {
    const char* const what = known ? "message before the start" : "message that a worker does not send";
    return Disconnect(peer, Status(StatusCode::kProtocolViolation, what));
  }
  if (message.has_declare()) engine_->OnDeclare(peer, message.declare());
  if (message.has_pull_request()) engine_->OnPullRequest(peer, message.pull_request());
  if (message.has_clock_request()) engine_->steps().OnClockRequest(peer, message.clock_request());
  if (message.has_barrier()) OnBarrier(peer, message.barrier());
}

void Coordinator::OnJoin(Peer& peer, const control::Join& join, bool holder_silent) {
  if (successions_.IsWaiting(peer)) {
    return Disconnect(peer, Status(StatusCode::kProtocolViolation, "a second Join"));
  }
  if (Status here = server_desk_.Judge(join); !here.ok()) return Refuse(peer, here);
  const JoinRequest request = RequestOf(peer, join);
  if (Status may = Authorize(request.identity, Request::kJoin); !may.ok()) return Refuse(peer, may);
  if (server_desk_.Hold(peer, join, engine_ != nullptr)) return;
  const auto admission = membership_.Join(request, now_, holder_silent);
  if (!admission.ok()) return Refuse(peer, admission.status());
  if (*admission == Membership::Admission::kContested) {
    return successions_.Begin(peer, join, *by_rank_[request.rank], now_);
  }
  const bool replaces = *admission == Membership::Admission::kReplaces;
  if (replaces) Replace(request.rank);
  if (!engine_ && membership_.joined() == 1) started_at_ = now_;
  peer.BecomeMember(join);
  by_rank_[peer.rank] = &peer;
  if (!replaces) roll_.OnChange();
  peer.connection->Admit(true);
  grants_.Join(now_, peer);
  if (engine_ && !replaces) {
    LH_REACHED("a lost rank comes back");
    engine_->OnMemberJoined(peer.rank);
  }
  hand_over_.OnChange(membership_.Describe(peer.rank) + " has come meanwhile");
  if (events_) events_->OnJoin(peer.rank, membership_.member(peer.rank), replaces);
  const std::string notice = engine_ || jobs_over() == 0 ? "" : Notice(record_.last(), now_, settings_);
  Send(peer, server_desk_.WithMap(WelcomeMessage(settings_, settings_.first_job + jobs_over(), notice)));
  if (engine_) {
    if (!start_record_) roll_.Start(peer, StartMessage(symbol_bytes_, settings_.world_size));
  } else if (membership_.TryStart(now_)) {
    StartJob();
  }
}

void Coordinator::DecideSuccessions() {
  while (const auto verdict = successions_.Decide(by_rank_, now_)) {
    Peer& newcomer = *verdict->newcomer;
    if (newcomer.phase != Peer::Phase::kNew) continue;
    if (verdict->answer == Successions::Answer::kLives) {
      Refuse(newcomer, membership_.Taken(verdict->join.rank(), verdict->after));
    } else {
      OnJoin(newcomer, verdict->join, verdict->answer == Successions::Answer::kSilent);
    }
  }
}

void Coordinator::Refuse(Peer& peer, const Status& why) {
  record_.OnRefused();
  if (events_) events_->OnRefused(peer.connection->peer(), IdentityText(peer.connection->identity()), why);
  Dismiss(peer, RefusedMessage(why, settings_.place.first_server), why);
}

// The rank's connection belongs to an older incarnation: out with it.
void Coordinator::Replace(uint32_t rank) {
  LH_REACHED("a worker is replaced");
  Peer& old = *by_rank_[rank];
  if (engine_) engine_->OnMemberReplaced(rank, old);
  record_.OnMemberGone(rank, old.connection->stats());
  old.phase = Peer::Phase::kLeaving;
  old.connection->Close(
      Status(StatusCode::kAborted,
             "replaced by incarnation " + std::to_string(membership_.member(rank).incarnation)));
  barriers_.Forget(rank);
}

void Coordinator::StartJob() {
  symbol_bytes_ = LongestChunk(by_rank_);
  if (images_ != nullptr) {
    // Chunks are as they were; those that a path does not carry any more travel in parts.
    if (const auto resumed = images_->resumed()) symbol_bytes_ = resumed->symbol_bytes;
    start_record_ =
        images_->OnJobStart({.number = settings_.first_job + jobs_over(), .symbol_bytes = symbol_bytes_});
  }
  RoundEngineHost* host = this;  // a private base, which make_unique could not see
  engine_ = std::make_unique<RoundEngine>(settings_, symbol_bytes_, &membership_, host, images_);
  engine_->SetNow(now_);
  record_.OnStart(now_, by_rank_);
  started_at_ = now_;
  if (events_) events_->OnStart(membership_.joined(), symbol_bytes_);
  TellStart();
  const Status why(StatusCode::kUnavailable, "a job has started (--bench-during-job lets both go on)");
  for (Peer* guest : guest_desk_.TakeThoseInTheWay(peers_)) Dismiss(*guest, LeaveMessage(why), why);
}

// A server that is started again knows the job of every worker that has begun with it.
void Coordinator::TellStart() {
  if (start_record_ && images_->logged() < *start_record_) return;
  start_record_.reset();
  roll_.Start(now_, by_rank_, StartMessage(symbol_bytes_, settings_.world_size));
}

// --- Other servers, and guests ---

void Coordinator::OnServerJoin(Peer& peer, const control::ServerJoin& join) {
  const Status taken = server_desk_.Admit(peer, join, engine_ != nullptr);
  if (!taken.ok()) return Refuse(peer, taken);
  for (const ServerDesk::Held& held : server_desk_.TakeReleased()) OnJoin(*held.peer, held.join);
}

void Coordinator::OnBenchJoin(Peer& peer, const control::BenchJoin& join) {
  const auto welcome = guest_desk_.Admit(peer, join, engine_ != nullptr);
  welcome.ok() ? Send(peer, *welcome) : Refuse(peer, welcome.status());
}

void Coordinator::OnGuestMessage(Peer& peer, const ControlMessage& message) {
  if (!message.has_leave()) {
    return Disconnect(peer,
                      Status(StatusCode::kProtocolViolation, "message that a load generator does not send"));
  }
  Send(peer, guests_->Report(peer));
  guest_desk_.Remove(peer);
  Dismiss(peer, LeaveMessage(Status()), Status());
}

void Coordinator::OnStatusRequest(Peer& peer, const control::StatusRequest& request) {
  const Status may = peer.joined() ? Status() : Authorize(peer.connection->identity(), Request::kStatus);
  if (!may.ok()) {
    guest_desk_.Remove(peer);
    return Refuse(peer, may);
  }
  peer.accepted_at = now_;  // an observer may stay as long as it asks
  Send(peer, status_.Answer(request.request(), now_, [this] { return Stats(); }));
}

// --- Access ---

void Coordinator::OnKick(Peer& peer, uint32_t rank) {
  const transport::Connection& by = *peer.connection;
  const auto who = access_.Kick(by.identity(), rank, &membership_);
  if (!who.ok()) return Refuse(peer, who.status());
  if (events_) events_->OnKick(rank, *who, IdentityText(by.identity()) + " at " + by.peer().ToString());
  const Status out(StatusCode::kPermissionDenied, "kicked by the operator");
  if (Peer* member = by_rank_[rank]) Disconnect(*member, out);
  Send(peer, KickedMessage(*who));
}

void Coordinator::CheckAccess(Peer& peer) {
  if (Status stay = access_.MayStay(peer, membership_); !stay.ok()) return Disconnect(peer, stay);
  const auto left = access_.TakeNotice(&peer);
  if (left && events_) events_->OnExpiring(IdentityText(peer.connection->identity()), *left);
}

void Coordinator::OnBarrier(Peer& peer, const control::Barrier& barrier) {
  const Status waits = barriers_.Wait(barrier.name(), {peer.rank, barrier.request()}, now_);
  if (!waits.ok()) return Send(peer, BarrierDoneMessage(barrier.request(), waits));
  ReleaseBarriers();
}

void Coordinator::ReleaseBarriers() {
  for (const Barriers::Waiter& waiter : barriers_.Release(membership_.joined())) {
    if (Peer* peer = by_rank_[waiter.rank]) Send(*peer, BarrierDoneMessage(waiter.request, Status()));
  }
}

void Coordinator::OnGiveUp(Peer& peer, const control::GiveUp& give_up) {
  if (!engine_) {
    const Wait start = StartWait(membership_, started_at_);
    return Send(peer, WaitingMessage(WaitText(membership_, start, now_)));
  }
  const auto left = barriers_.GiveUp({peer.rank, give_up.request()});
  if (!left) return engine_->OnGiveUp(peer, give_up.request());
  const std::string why = GaveUpText(membership_, left->first, left->second, peer.rank, now_);
  Send(peer, BarrierDoneMessage(give_up.request(), Status(StatusCode::kDeadlineExceeded, why)));
}

void Coordinator::SayWhatWaits() {
  if (!waits_.LooksAt(now_)) return;
  const std::string all =
      waits_.Say(Waits::Of(membership_, engine_.get(), barriers_, started_at_), membership_, now_, events_);
  if (all.empty()) return;
  for (Peer* peer : by_rank_) {
    if (peer != nullptr) Send(*peer, WaitingMessage(all));
  }
}

void Coordinator::OnLeave(Peer& peer, const control::Leave& leave) {
  const auto code = static_cast<StatusCode>(leave.code());
  const Status why = leave.code() == 0 ? Status() : Status(code, "gave up: " + leave.message());
  MemberGone(peer, why);
  peer.connection->Close(why);
}

// --- Ends ---

void Coordinator::Dismiss(Peer& peer, const ControlMessage& message, const Status& why) {
  peer.phase = Peer::Phase::kLeaving;
  peer.connection->Admit(false);
  Send(peer, message);
  peer.close_at = now_ + kLinger;
  peer.close_why = why;
}

// An Ok `why` is an orderly goodbye.
void Coordinator::MemberGone(Peer& peer, const Status& why) {
  const uint32_t rank = peer.rank;
  const std::string who = membership_.Describe(rank);
  record_.OnMemberGone(rank, peer.connection->stats());
  peer.phase = Peer::Phase::kLeaving;
  by_rank_[rank] = nullptr;
  grants_.Leave(now_, rank);
  if (why.ok()) {
    membership_.Leave(rank);
  } else {
    membership_.Lose(rank);
  }
  roll_.OnChange();
  hand_over_.OnChange(who + " is gone meanwhile");
  if (events_) events_->OnLeave(rank, who, why);
  barriers_.Forget(rank);
  if (engine_ && !why.ok() && !membership_.EnoughWorkers()) {
    // No round is finished without it: the job ends as it is.
    LH_REACHED("a loss ends the job");
    engine_->DropPeer(peer);
    RequestAbort(Status(StatusCode::kAborted, who + ": " + why.ToString()));
    return;  // what waits at a barrier ends with the job, and not as if all had come
  }
  if (engine_) {
    LH_REACHED("the job goes on without a worker");
    engine_->OnMemberGone(rank, peer);
  }
  ReleaseBarriers();
}

void Coordinator::AfterEvent() {
  grants_.Run(now_);
  if (engine_) engine_->EndEvent();
  roll_.Run(now_, by_rank_);
  hand_over_.Run(now_);
  if (engine_ && abort_) {
    EndJob(*std::exchange(abort_, std::nullopt));
  } else if (engine_ && membership_.joined() == 0) {
    EndJob(Status());
  }
  abort_.reset();
}

void Coordinator::EndJob(const Status& outcome) {
  const auto last = record_.Flush(by_rank_);
  if (last && events_) events_->OnRound(*last, Stats());
  const ServerStats stats = Stats();
  for (Peer*& peer : by_rank_) {
    if (peer == nullptr) continue;
    engine_->DropPeer(*peer);
    Dismiss(*peer, LeaveMessage(outcome), outcome);
    grants_.Leave(now_, peer->rank);
    peer = nullptr;
  }
  engine_->images().Finish();
  engine_.reset();
  start_record_.reset();
  if (images_ != nullptr) images_->OnJobOver();
  barriers_.Clear();
  abort_.reset();
  membership_.Reset();
  record_.OnEnd(outcome, stats.rounds, now_);
  if (events_) events_->OnJobOver(outcome, stats);
}

void Coordinator::Shutdown(const Status& why) {
  shutting_down_ = true;
  const Status reason = why.ok() ? Status(StatusCode::kCancelled, "the server is shutting down") : why;
  if (engine_) EndJob(reason);
  for (const auto& peer : peers_) {
    if (peer->phase == Peer::Phase::kLeaving) continue;
    if (peer->joined()) {
      LH_REACHED("the server ends before the job starts");
      membership_.Lose(peer->rank);
      grants_.Leave(now_, peer->rank);
      by_rank_[peer->rank] = nullptr;
    }
    guest_desk_.Remove(*peer);
    Dismiss(*peer, LeaveMessage(reason), reason);
  }
}

// --- Time ---

void Coordinator::HandleTimeout() {
  const bool looked = engine_ && engine_->HandleTimeout();
  if (guests_ != nullptr) {
    for (Peer* peer : guests_->HandleTimeout()) Send(*peer, guests_->Report(*peer));
  }
  for (const Peer* peer : by_rank_) {
    if (looked && peer != nullptr) grants_.OnWindow(now_, peer->rank);  // time may have closed its windows
  }
  DecideSuccessions();
  if (now_ < next_tick_) return;
  if (!engine_ && membership_.TryStart(now_)) StartJob();
  SayWhatWaits();
  if (const auto left = access_.TakeOwnNotice(); left && events_) events_->OnExpiring("the server", *left);
  for (const auto& peer : peers_) {
    CheckAccess(*peer);
    peer->CountHeard(now_);
    if (peer->joined()) membership_.OnHeard(peer->rank, peer->last_heard);
    const Status overdue = Strangers::WhyOverdue(*peer, now_);
    if (!overdue.ok() && !server_desk_.Knows(*peer)) Disconnect(*peer, overdue);
    peer->CloseIfDue(now_);
  }
  next_tick_ = peers_.empty() ? Instant::Infinite() : now_ + kTick;
}

Instant Coordinator::NextTimeout() const {
  Instant next =
      std::min({next_tick_, grants_.NextTimeout(), successions_.NextTimeout(), roll_.NextTimeout()});
  if (guests_ != nullptr) next = std::min(next, guests_->NextTimeout());
  return engine_ ? std::min(next, engine_->NextTimeout()) : next;
}

// --- Statistics ---

void Coordinator::OnTensorRound(const TensorRound& round) {
  for (const JobRound& over : record_.Add(round, engine_->tensor_count(), now_, by_rank_)) {
    if (events_) events_->OnRound(over, Stats());
  }
}

ServerStats Coordinator::Stats() const {
  ServerStats stats = StatsOf(settings_);
  stats.phase = engine_ ? ServerStats::Phase::kRunning : ServerStats::Phase::kWaiting;
  if (endpoint_stats_) stats.endpoint = endpoint_stats_();
  stats.strangers = Strangers::Count(peers_);
  stats.strangers_displaced = strangers_.displaced();
  stats.joined = membership_.joined();
  stats.barriers_refused = barriers_.refused();
  guest_desk_.AddStats(&stats);
  server_desk_.AddStats(&stats);
  for (const Wait& wait : Waits::Of(membership_, engine_.get(), barriers_, started_at_)) {
    stats.waits.push_back(WaitText(membership_, wait, now_));
  }
  stats.grants = grants_.stats();
  if (images_ != nullptr) AddKeeperStats(images_->stats(), &stats);
  if (engine_) stats.running = now_ - started_at_;
  record_.AddTo(membership_, by_rank_, engine_.get(), now_, &stats);
  return stats;
}

}  // namespace longhaul::server
