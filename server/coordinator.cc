#include "server/coordinator.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "proto/utf8.h"
#include "server/authorization.h"

namespace longhaul::server {
namespace {

using control::ControlMessage;

ControlMessage RefusedMessage(const Status& why) {
  ControlMessage message;
  message.mutable_refused()->set_code(static_cast<uint32_t>(why.code()));
  message.mutable_refused()->set_message(wire::Printable(why.message(), wire::kMaxTextBytes));
  return message;
}

ControlMessage LeaveMessage(const Status& why) {
  ControlMessage message;
  message.mutable_leave()->set_code(static_cast<uint32_t>(why.code()));
  message.mutable_leave()->set_message(wire::Printable(why.message(), wire::kMaxTextBytes));
  return message;
}

// Whom a connection that nobody knows yet counts against.
std::string SourceOf(const transport::Connection& connection) {
  if (!connection.identity().name.empty()) return IdentityText(connection.identity());
  const Address address = connection.peer();
  const size_t network = address.IsV4() ? address.ip.size() : 8;
  return {address.ip.begin(), address.ip.begin() + static_cast<ptrdiff_t>(network)};
}

}  // namespace

Coordinator::Coordinator(ServerSettings settings, ServerEvents* events,
                         std::function<std::string(const ServerStats&)> status_json, ByteCount receive_window)
    : settings_(std::move(settings)),
      events_(events),
      status_json_(std::move(status_json)),
      membership_(settings_.job, settings_.world_size, settings_.min_workers),
      bench_(settings_),
      grants_(settings_.grants, settings_.world_size, receive_window),
      by_rank_(settings_.world_size, nullptr),
      gone_by_rank_(settings_.world_size) {}

Coordinator::~Coordinator() = default;

void Coordinator::SetNow(Instant now) {
  now_ = now;
  bench_.SetNow(now);
  if (engine_) engine_->SetNow(now);
}

// --- Connections ---

transport::ConnectionObserver* Coordinator::Accept(transport::Connection& connection) {
  if (shutting_down_) return nullptr;
  MakeRoomFor(connection);
  auto peer = std::make_unique<Peer>(&connection);
  peer->since = peer->accepted_at = peer->last_heard = now_;
  connection.user = peer.get();
  peers_.push_back(std::move(peer));
  next_tick_ = std::min(next_tick_, now_ + kTick);
  return this;
}

void Coordinator::MakeRoomFor(const transport::Connection& connection) {
  struct Source {
    size_t count = 0;
    Peer* oldest = nullptr;
  };
  std::map<std::string, Source> sources;
  size_t all = 0;
  for (const auto& peer : peers_) {  // in order of acceptance
    if (peer->phase != Peer::Phase::kNew) continue;
    Source& source = sources[SourceOf(*peer->connection)];
    if (source.count++ == 0) source.oldest = peer.get();
    ++all;
  }
  if (sources.empty()) return;
  const auto fewer = [](const auto& a, const auto& b) {
    return std::pair(a.second.count, b.second.oldest->since) <
           std::pair(b.second.count, a.second.oldest->since);
  };
  auto displaced = sources.find(SourceOf(connection));
  if (displaced == sources.end() || displaced->second.count < MaxStrangersPerSource(settings_.world_size)) {
    if (all < MaxStrangers(settings_.world_size)) return;
    displaced = std::max_element(sources.begin(), sources.end(), fewer);
  }
  ++strangers_displaced_;
  Disconnect(*displaced->second.oldest,
             Status(StatusCode::kResourceExhausted, "there are too many connections that have not joined"));
}

Peer& Coordinator::Heard(transport::Connection& connection) {
  Peer& peer = *static_cast<Peer*>(connection.user);
  peer.last_heard = now_;
  return peer;
}

void Coordinator::OnConnected(transport::Connection& connection) { Heard(connection).accepted_at = now_; }

void Coordinator::OnClosed(transport::Connection& connection, const Status& why) {
  Peer& peer = *static_cast<Peer*>(connection.user);
  if (peer.joined()) {
    const Status lost =
        why.ok() ? Status(StatusCode::kAborted, "closed its connection without leaving") : why;
    MemberGone(peer, lost);
  }
  BenchGone(peer);
  connection.user = nullptr;
  std::erase_if(peers_, [&peer](const auto& p) { return p.get() == &peer; });
}

void Coordinator::OnControlData(transport::Connection& connection, ByteSpan bytes) {
  Peer& peer = Heard(connection);
  if (peer.phase == Peer::Phase::kLeaving) return;
  const auto messages = peer.control.Append(bytes);
  if (!messages.ok()) return Disconnect(peer, messages.status());
  for (const ControlMessage& message : *messages) {
    if (peer.phase == Peer::Phase::kLeaving) return;
    OnMessage(peer, message);
  }
}

Status Coordinator::OnWindowOpened(transport::Connection& connection, transport::WindowKey key,
                                   const wire::WindowOpenFrame& open) {
  Peer& peer = Heard(connection);
  // A refusal could arrive before the message that says why the job is over; the window ends with the
  // connection, soon.
  if (peer.phase == Peer::Phase::kLeaving) return {};
  if (peer.phase == Peer::Phase::kBench) return bench_.OnWindowOpened(peer, key, open);
  if (!peer.joined()) {  // a refusal would cost us memory for somebody we know nothing about
    const Status why(StatusCode::kProtocolViolation, "a window before Join");
    Disconnect(peer, why);
    return why;
  }
  if (!engine_) return Status(StatusCode::kFailedPrecondition, "no job has started here");
  const Status opened = engine_->OnWindowOpened(peer, key, open);
  grants_.OnWindow(now_, peer.rank);
  return opened;
}

transport::ChunkVerdict Coordinator::OnChunk(transport::Connection& connection, transport::WindowKey key,
                                             wire::ReliabilityClass reliability, uint32_t, ByteSpan chunk,
                                             bool repaired) {
  Peer& peer = Heard(connection);
  if (peer.phase == Peer::Phase::kBench) return bench_.OnChunk(peer, reliability, chunk, repaired);
  if (!peer.joined() || !engine_) return transport::ChunkVerdict::kRefused;
  return engine_->OnChunk(peer, key, reliability == wire::ReliabilityClass::kHigh, chunk, repaired);
}

void Coordinator::OnWindowProgress(transport::Connection& connection, transport::WindowKey key) {
  Peer& peer = Heard(connection);
  if (peer.phase == Peer::Phase::kBench) return bench_.OnWindowProgress(peer, key);
  if (!peer.joined() || !engine_) return;
  engine_->OnWindowProgress(peer, key);
  grants_.OnWindow(now_, peer.rank);
}

void Coordinator::OnWindowClosed(transport::Connection& connection, transport::WindowKey key,
                                 wire::CloseReason, const transport::WindowReceipt& receipt,
                                 const transport::WindowTxStats&) {
  Peer& peer = Heard(connection);
  if (peer.joined() && engine_) engine_->OnOutgoingClosed(peer, key, receipt);
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
    ++joins_refused_;
    if (events_) events_->OnRefused(peer.connection->peer(), IdentityText(peer.connection->identity()), why);
    BenchGone(peer);
    peer.phase = Peer::Phase::kLeaving;
  }
  peer.connection->Admit(false);
  // A member stays one until its connection is over: OnClosed follows.
  peer.connection->Close(why);
}

void Coordinator::RequestAbort(const Status& why) {
  if (!abort_) abort_ = why;
}

// --- Messages ---

void Coordinator::OnMessage(Peer& peer, const ControlMessage& message) {
  if (message.has_status_request()) return OnStatusRequest(peer, message.status_request());
  if (peer.joined()) return OnMemberMessage(peer, message);
  if (peer.phase == Peer::Phase::kBench) return OnBenchMessage(peer, message);
  if (message.has_bench_join()) return OnBenchJoin(peer, message.bench_join());
  if (message.has_join()) return OnJoin(peer, message.join());
  if (message.has_leave()) return Dismiss(peer, LeaveMessage(Status()), Status());
  Disconnect(peer, Status(StatusCode::kProtocolViolation, "the first message must be Join"));
}

void Coordinator::OnMemberMessage(Peer& peer, const ControlMessage& message) {
  if (message.has_leave()) return OnLeave(peer, message.leave());
  const bool known = message.has_declare() || message.has_pull_request() || message.has_barrier();
  if (!known || !engine_) {
    return Disconnect(peer,
                      Status(StatusCode::kProtocolViolation,
                             known ? "message before the start" : "message that a worker does not send"));
  }
  if (message.has_declare()) engine_->OnDeclare(peer, message.declare());
  if (message.has_pull_request()) engine_->OnPullRequest(peer, message.pull_request());
  if (message.has_barrier()) OnBarrier(peer, message.barrier());
}

void Coordinator::OnJoin(Peer& peer, const control::Join& join) {
  const JoinRequest request{.job = join.job(),
                            .rank = join.rank(),
                            .world_size = join.world_size(),
                            .incarnation = join.incarnation(),
                            .site = join.site(),
                            .identity = peer.connection->identity(),
                            .weight = join.weight(),
                            .peer = peer.connection->peer()};
  if (Status may = Authorize(request.identity, Request::kJoin); !may.ok()) return Refuse(peer, may);
  if (Status fits = CheckChunkBytes(peer); !fits.ok()) return Refuse(peer, fits);
  const auto admission = membership_.Join(request, now_);
  if (!admission.ok()) return Refuse(peer, admission.status());
  const bool replaces = *admission == Membership::Admission::kReplaces;
  if (replaces) Replace(request.rank, request.incarnation);
  peer.phase = Peer::Phase::kJoined;
  peer.rank = request.rank;
  by_rank_[peer.rank] = &peer;
  peer.connection->Admit(true);
  grants_.Join(now_, peer);
  if (engine_ && !replaces) engine_->OnMemberJoined(peer.rank);
  if (events_) events_->OnJoin(peer.rank, membership_.member(peer.rank), replaces);
  Welcome(peer);
  if (engine_) {
    SendStart(peer);
  } else if (membership_.TryStart()) {
    StartJob();
  }
}

void Coordinator::Refuse(Peer& peer, const Status& why) {
  ++joins_refused_;
  if (events_) events_->OnRefused(peer.connection->peer(), IdentityText(peer.connection->identity()), why);
  Dismiss(peer, RefusedMessage(why), why);
}

Status Coordinator::CheckChunkBytes(const Peer& peer) const {
  const size_t chunk_bytes = peer.connection->MaxChunkBytes();
  if (!engine_ || chunk_bytes >= symbol_bytes_) return {};
  return Status(StatusCode::kSettingsMismatch, "this path carries chunks of " + std::to_string(chunk_bytes) +
                                                   " bytes, the job has started with " +
                                                   std::to_string(symbol_bytes_));
}

// The rank's connection belongs to an older incarnation: out with it.
void Coordinator::Replace(uint32_t rank, uint64_t incarnation) {
  Peer& old = *by_rank_[rank];
  if (engine_) engine_->OnMemberReplaced(rank, old);
  gone_.Add(old.connection->stats());
  gone_by_rank_[rank].Add(old.connection->stats());
  old.phase = Peer::Phase::kLeaving;
  old.connection->Close(
      Status(StatusCode::kAborted, "replaced by incarnation " + std::to_string(incarnation)));
  for (auto& [name, waiters] : barriers_) {
    std::erase_if(waiters, [rank](const BarrierWaiter& waiter) { return waiter.rank == rank; });
  }
}

void Coordinator::Welcome(Peer& peer) {
  ControlMessage message;
  control::Welcome& welcome = *message.mutable_welcome();
  welcome.set_rank(peer.rank);
  welcome.set_world_size(settings_.world_size);
  welcome.set_policy(settings_.policy);
  welcome.set_high_share(settings_.high_share);
  welcome.set_bubble_threshold(settings_.bubble_threshold);
  welcome.set_close_ratio(settings_.close_ratio);
  welcome.set_fec_k(settings_.fec_k);
  welcome.set_fec_depth(settings_.fec_depth);
  const auto idle = std::chrono::duration_cast<std::chrono::milliseconds>(settings_.idle_timeout);
  welcome.set_idle_timeout_ms(static_cast<uint64_t>(idle.count()));
  welcome.set_staleness(0);
  welcome.set_seed(settings_.seed);
  welcome.set_shift_alpha(settings_.shift_alpha);
  welcome.set_priority(settings_.priority);
  welcome.set_high_energy(settings_.high_energy);
  welcome.set_topk_share(settings_.topk_share);
  welcome.set_downlink(settings_.downlink);
  welcome.set_hash_rounds(settings_.hash_rounds);
  Send(peer, message);
}

void Coordinator::SendStart(Peer& peer) {
  ControlMessage message;
  message.mutable_start()->set_symbol_bytes(symbol_bytes_);
  message.mutable_start()->set_members(settings_.world_size);
  Send(peer, message);
}

void Coordinator::StartJob() {
  size_t symbol_bytes = 65520;
  for (const Peer* peer : by_rank_) symbol_bytes = std::min(symbol_bytes, peer->connection->MaxChunkBytes());
  symbol_bytes_ = static_cast<uint16_t>(symbol_bytes);
  RoundEngineHost* host = this;  // a private base, which make_unique could not see
  engine_ = std::make_unique<RoundEngine>(settings_, symbol_bytes_, &membership_, host);
  engine_->SetNow(now_);
  rounds_.emplace(now_);
  started_at_ = now_;
  reported_ = Traffic();
  if (events_) events_->OnStart(settings_.world_size, symbol_bytes_);
  for (Peer* peer : by_rank_) SendStart(*peer);
  if (bench_.during_job()) return;
  const Status why(StatusCode::kUnavailable, "a job has started (--bench-during-job lets both go on)");
  for (const auto& peer : peers_) {
    if (peer->phase != Peer::Phase::kBench) continue;
    BenchGone(*peer);
    Dismiss(*peer, LeaveMessage(why), why);
  }
}

// --- Load generators ---

void Coordinator::OnBenchJoin(Peer& peer, const control::BenchJoin& join) {
  if (Status may = Authorize(peer.connection->identity(), Request::kBench); !may.ok())
    return Refuse(peer, may);
  if (Status admitted = bench_.Admit(peer, join.site(), engine_ != nullptr); !admitted.ok()) {
    return Refuse(peer, admitted);
  }
  peer.phase = Peer::Phase::kBench;
  peer.connection->Admit(true);
  ++bench_served_;
  if (events_) {
    events_->OnBench(peer.connection->peer(), IdentityText(peer.connection->identity()), join.site(),
                     nullptr);
  }
  ControlMessage message;
  control::BenchWelcome& welcome = *message.mutable_bench_welcome();
  welcome.set_fec_k(settings_.fec_k);
  welcome.set_fec_depth(settings_.fec_depth);
  const auto idle = std::chrono::duration_cast<std::chrono::milliseconds>(settings_.idle_timeout);
  welcome.set_idle_timeout_ms(static_cast<uint64_t>(idle.count()));
  welcome.set_max_open_windows(BenchSink::kMaxOpenWindows);
  welcome.set_max_open_bytes(static_cast<uint64_t>(BenchSink::kMaxOpenBytes.value()));
  Send(peer, message);
}

void Coordinator::OnBenchMessage(Peer& peer, const ControlMessage& message) {
  if (!message.has_leave()) {
    return Disconnect(peer,
                      Status(StatusCode::kProtocolViolation, "message that a load generator does not send"));
  }
  SendBenchReport(peer, bench_.Totals(peer));  // the last word about what arrived
  BenchGone(peer);
  Dismiss(peer, LeaveMessage(Status()), Status());
}

void Coordinator::SendBenchReport(Peer& peer, const BenchTotals& totals) {
  ControlMessage message;
  control::BenchReport& report = *message.mutable_bench_report();
  const auto elapsed = std::chrono::duration_cast<std::chrono::microseconds>(totals.elapsed);
  report.set_elapsed_us(static_cast<uint64_t>(elapsed.count()));
  report.set_high_bytes(totals.high_bytes);
  report.set_low_bytes(totals.low_bytes);
  report.set_chunks_repaired(totals.chunks_repaired);
  report.set_windows_closed(totals.windows_closed);
  Send(peer, message);
}

// Harmless for who is no load generator (any more).
void Coordinator::BenchGone(Peer& peer) {
  if (!bench_.Contains(peer)) return;
  const std::string site = bench_.site(peer);
  const BenchTotals totals = bench_.Remove(peer);
  bench_bytes_ += totals.high_bytes + totals.low_bytes;
  if (events_) {
    events_->OnBench(peer.connection->peer(), IdentityText(peer.connection->identity()), site, &totals);
  }
}

void Coordinator::OnStatusRequest(Peer& peer, const control::StatusRequest& request) {
  if (!peer.joined()) {
    if (Status may = Authorize(peer.connection->identity(), Request::kStatus); !may.ok()) {
      BenchGone(peer);
      return Refuse(peer, may);
    }
  }
  peer.accepted_at = now_;  // an observer may stay as long as it asks
  if (!status_ || now_ >= status_at_ + kStatusAge) {
    status_at_ = now_;
    status_ = status_json_ ? status_json_(Stats()) : "{}";
    if (status_->size() > wire::kMaxControlMessageBytes / 2)
      status_ = "{\"error\":\"the status is too long\"}";
  }
  ControlMessage message;
  message.mutable_status_reply()->set_request(request.request());
  message.mutable_status_reply()->set_json(*status_);
  Send(peer, message);
}

void Coordinator::OnBarrier(Peer& peer, const control::Barrier& barrier) {
  if (!barriers_.contains(barrier.name()) && barriers_.size() >= kMaxBarriers) {
    return Disconnect(peer, Status(StatusCode::kResourceExhausted, "more than 64 barriers at once"));
  }
  auto& waiters = barriers_[barrier.name()];
  const bool twice = std::ranges::count(waiters, peer.rank, &BarrierWaiter::rank) > 0;
  if (twice) {
    return Disconnect(peer,
                      Status(StatusCode::kProtocolViolation, "waits twice at barrier " + barrier.name()));
  }
  waiters.push_back({peer.rank, barrier.request()});
  ReleaseBarriers();
}

void Coordinator::ReleaseBarriers() {
  std::erase_if(barriers_, [this](auto& entry) {
    auto& waiters = entry.second;
    if (waiters.empty()) return true;  // all of them are gone
    if (waiters.size() < membership_.joined()) return false;
    for (const BarrierWaiter& waiter : waiters) {
      ControlMessage done;
      done.mutable_barrier_done()->set_request(waiter.request);
      if (Peer* peer = by_rank_[waiter.rank]; peer != nullptr) Send(*peer, done);
    }
    return true;
  });
}

void Coordinator::OnLeave(Peer& peer, const control::Leave& leave) {
  if (leave.code() == 0) {
    MemberGone(peer, Status());
    peer.connection->Close(Status());
    return;
  }
  const Status why(static_cast<StatusCode>(leave.code()), "gave up: " + leave.message());
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
  gone_.Add(peer.connection->stats());
  gone_by_rank_[rank].Add(peer.connection->stats());
  peer.phase = Peer::Phase::kLeaving;
  by_rank_[rank] = nullptr;
  grants_.Leave(now_, rank);
  if (why.ok()) {
    membership_.Leave(rank);
  } else {
    membership_.Lose(rank);
  }
  if (events_) events_->OnLeave(rank, who, why);
  if (engine_ && !why.ok() && !membership_.EnoughWorkers()) {
    // No round is finished without it: the job ends as it is.
    engine_->DropPeer(peer);
    RequestAbort(Status(StatusCode::kAborted, who + ": " + why.ToString()));
  } else if (engine_) {
    engine_->OnMemberGone(rank, peer);
  }
  for (auto& [name, waiters] : barriers_) {
    std::erase_if(waiters, [rank](const BarrierWaiter& waiter) { return waiter.rank == rank; });
  }
  ReleaseBarriers();
}

bool Coordinator::AfterEvent() {
  grants_.Run(now_);
  if (engine_ && abort_) {
    EndJob(*std::exchange(abort_, std::nullopt));
    return true;
  }
  abort_.reset();
  if (engine_ && membership_.joined() == 0) {
    EndJob(Status());
    return true;
  }
  return false;
}

void Coordinator::EndJob(const Status& outcome) {
  if (const auto last = rounds_->Flush()) Report(*last);
  const ServerStats stats = Stats();
  for (Peer*& peer : by_rank_) {
    if (peer == nullptr) continue;
    engine_->DropPeer(*peer);
    Dismiss(*peer, LeaveMessage(outcome), outcome);
    grants_.Leave(now_, peer->rank);
    peer = nullptr;
  }
  engine_.reset();
  rounds_.reset();
  barriers_.clear();
  abort_.reset();
  membership_.Reset();
  gone_ = {};
  std::fill(gone_by_rank_.begin(), gone_by_rank_.end(), TrafficTotals());
  ++(outcome.ok() ? jobs_finished_ : jobs_aborted_);
  last_outcome_ = outcome;
  if (events_) events_->OnJobOver(outcome, stats);
}

void Coordinator::Shutdown(const Status& why) {
  shutting_down_ = true;
  const Status reason = why.ok() ? Status(StatusCode::kCancelled, "the server is shutting down") : why;
  if (engine_) EndJob(reason);
  for (const auto& peer : peers_) {
    if (peer->phase == Peer::Phase::kLeaving) continue;
    if (peer->joined()) {
      membership_.Lose(peer->rank);
      grants_.Leave(now_, peer->rank);
      by_rank_[peer->rank] = nullptr;
    }
    BenchGone(*peer);
    Dismiss(*peer, LeaveMessage(reason), reason);
  }
}

// --- Time ---

void Coordinator::HandleTimeout() {
  if (engine_) engine_->HandleTimeout();
  bench_.HandleTimeout([this](Peer& peer, const BenchTotals& totals) { SendBenchReport(peer, totals); });
  for (const Peer* peer : by_rank_) {
    if (peer != nullptr) grants_.OnWindow(now_, peer->rank);  // time may have closed its windows
  }
  if (now_ < next_tick_) return;
  for (const auto& peer : peers_) {
    const uint64_t packets = peer->connection->stats().packets_received;
    if (packets != peer->packets_heard) peer->last_heard = now_;
    peer->packets_heard = packets;
    if (peer->joined()) membership_.OnHeard(peer->rank, peer->last_heard);
    if (peer->phase == Peer::Phase::kNew && now_ >= peer->accepted_at + kJoinTimeout) {
      Disconnect(*peer, Status(StatusCode::kDeadlineExceeded, "no Join within 5 s"));
    }
    if (now_ >= peer->close_at) {
      peer->close_at = Instant::Infinite();
      peer->connection->Close(peer->close_why);
    }
  }
  next_tick_ = peers_.empty() ? Instant::Infinite() : now_ + kTick;
}

Instant Coordinator::NextTimeout() const {
  const Instant next = std::min({next_tick_, bench_.NextTimeout(), grants_.NextTimeout()});
  return engine_ ? std::min(next, engine_->NextTimeout()) : next;
}

// --- Statistics ---

void Coordinator::OnTensorRound(const TensorRound& round) {
  for (const JobRound& over : rounds_->Add(round, engine_->tensor_count(), now_)) Report(over);
}

void Coordinator::OnRejected(const Rejection& rejection) {
  if (events_) events_->OnRejected(rejection, membership_.Describe(rejection.rank));
}

void Coordinator::Report(const JobRound& round) {
  JobRound report = round;
  const TrafficTotals traffic = Traffic();
  report.chunk_bytes_up = traffic.chunk_bytes_received - reported_.chunk_bytes_received;
  report.chunk_bytes_down = traffic.chunk_bytes_sent - reported_.chunk_bytes_sent;
  reported_ = traffic;
  if (events_) events_->OnRound(report, Stats());
}

TrafficTotals Coordinator::Traffic() const {
  TrafficTotals traffic = gone_;
  for (const Peer* peer : by_rank_) {
    if (peer != nullptr) traffic.Add(peer->connection->stats());
  }
  return traffic;
}

ServerStats Coordinator::Stats() const {
  ServerStats stats;
  stats.phase = engine_ ? ServerStats::Phase::kRunning : ServerStats::Phase::kWaiting;
  stats.job = settings_.job;
  stats.security = settings_.security;
  stats.identity = settings_.identity;
  if (endpoint_stats_) stats.endpoint = endpoint_stats_();
  stats.strangers = static_cast<uint64_t>(
      std::ranges::count(peers_, Peer::Phase::kNew, [](const auto& peer) { return peer->phase; }));
  stats.strangers_displaced = strangers_displaced_;
  stats.policy = settings_.policy;
  stats.bubble_threshold = settings_.bubble_threshold;
  stats.world_size = settings_.world_size;
  stats.joined = membership_.joined();
  stats.jobs_finished = jobs_finished_;
  stats.jobs_aborted = jobs_aborted_;
  stats.joins_refused = joins_refused_;
  stats.bench_connections = bench_.connections();
  stats.bench_served = bench_served_;
  stats.bench_bytes = bench_bytes_;
  for (const auto& peer : peers_) {
    if (!bench_.Contains(*peer)) continue;
    const BenchTotals totals = bench_.Totals(*peer);
    stats.bench_bytes += totals.high_bytes + totals.low_bytes;
  }
  stats.traffic = Traffic();
  stats.grants = grants_.stats();
  if (engine_) {
    const EngineStats& engine = engine_->stats();
    stats.running = now_ - started_at_;
    stats.rounds = rounds_->rounds();
    stats.low_chunks = rounds_->low_chunks();
    stats.low_lost = rounds_->low_lost();
    stats.round_p50 = rounds_->Percentile(0.50);
    stats.round_p99 = rounds_->Percentile(0.99);
    stats.tensors = engine_->tensor_count();
    stats.elements = engine_->elements();
    stats.filled = engine.filled;
    stats.tolerated = engine.tolerated;
    stats.duplicate_contributions = engine.duplicate_contributions;
    stats.taken_and_dropped = engine.taken_and_dropped;
    stats.late_chunks = engine.late_chunks;
    stats.old_windows_refused = engine.old_windows_refused;
    stats.late_windows_taken = engine.late_windows_taken;
    stats.epoch_refused = engine.epoch_refused;
    const ResultSender::Stats results = engine_->results().stats();
    stats.results_outdated = results.outdated;
    stats.memory_bytes = engine_->memory().taken();
    stats.memory_member_bytes = engine_->memory().per_member();
    stats.memory_budget_bytes = engine_->memory().total();
    stats.pulls_held = engine.pulls_held;
    stats.result_chunks_lost = results.chunks.lost;
    stats.result_chunks_repaid = results.chunks.repaid;
    stats.state_hashes = engine.state_hashes;
  }
  for (uint32_t rank = 0; rank < settings_.world_size; ++rank) {
    const Member& member = membership_.member(rank);
    if (member.state == Member::State::kEmpty) continue;
    MemberStats& m = stats.members.emplace_back();
    m.rank = rank;
    m.state = member.state;
    m.site = member.site;
    m.identity = IdentityText(member.identity);
    m.peer = member.peer;
    m.incarnation = member.incarnation;
    m.traffic = gone_by_rank_[rank];
    m.silent = now_ - member.last_heard;
    if (const Peer* peer = by_rank_[rank]; peer != nullptr) {
      const transport::ConnectionStats connection = peer->connection->stats();
      m.silent = now_ - peer->last_heard;
      m.smoothed_rtt = connection.smoothed_rtt;
      m.min_rtt = connection.min_rtt;
      m.loss = connection.loss;
      m.cipher = connection.cipher;
      m.traffic.Add(connection);
      m.limited = connection.limited;
      m.grant = stats.grants.by_rank[rank];
    }
    if (engine_) {
      const EngineStats::Rank& counts = engine_->stats().by_rank[rank];
      m.chunks = counts.chunks;
      m.repaired = counts.repaired;
      m.lost = counts.lost;
      m.rejected = counts.rejected;
      m.excluded = counts.excluded;
      std::copy(std::begin(counts.close_reasons), std::end(counts.close_reasons), m.close_reasons);
      stats.repaired += counts.repaired;
      stats.lost += counts.lost;
      stats.rejected += counts.rejected;
    }
  }
  return stats;
}

}  // namespace longhaul::server
