// The server's side of every connection: the members of the job, its start and its end. What happens in
// between is the round engine's.
//
//   strangers --Join--> members --(barrier)--> Start --rounds--> Leave by all: finished
//                                                       \------> too few left: aborted, all learn why
// Then the next job may come: the coordinator is empty again.
//
// Takes the events of all connections; needs no endpoint. Before anything else SetNow, after all events of a
// datagram, and after HandleTimeout, AfterEvent.
// A worker's Leave is answered by closing its connection with Ok. Not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/grants/grants.h"
#include "server/job/access.h"
#include "server/job/barriers.h"
#include "server/job/guest_desk.h"
#include "server/job/hand_over_desk.h"
#include "server/job/job_stats.h"
#include "server/job/messages.h"
#include "server/job/roll.h"
#include "server/job/server_desk.h"
#include "server/job/status_answers.h"
#include "server/job/strangers.h"
#include "server/job/successions.h"
#include "server/job/waits.h"
#include "server/member/membership.h"
#include "server/member/peer.h"
#include "server/report/round_log.h"
#include "server/report/server_stats.h"
#include "server/round/round_engine.h"
#include "server/settings.h"
#include "transport/core/connection/connection.h"
#include "transport/core/endpoint/endpoint.h"

namespace longhaul::server {

class Coordinator final : private RoundEngineHost {
 public:
  // How long a refused or dismissed peer has to read the reason before its connection is closed with it.
  static constexpr Duration kLinger = std::chrono::milliseconds(500);
  // Between two looks at which peers have spoken, are overdue or have lingered: a fraction of kLinger.
  static constexpr Duration kTick = std::chrono::milliseconds(200);

  // `events` may be null. status_json makes the answer to a StatusRequest; it may be empty.
  // receive_window: of every connection, as it is before any grant. guests: null refuses all; images: null
  // keeps none; else they must outlive this.
  Coordinator(ServerSettings settings, ServerEvents* events,
              std::function<std::string(const ServerStats&)> status_json,
              ByteCount receive_window = transport::ConnectionOptions().receive_window,
              Guests* guests = nullptr, ImageKeeper* images = nullptr);
  ~Coordinator() override;

  // Seconds since 1970, UTC, which certificates are dated by; without it they do not expire.
  void SetWallClock(const std::function<int64_t()>& clock) {
    access_.SetWallClock(clock), roll_.SetWallClock(clock);
  }
  // Where the endpoint's counters in Stats come from; may be empty.
  void SetEndpointStats(std::function<transport::EndpointStats()> stats) {
    endpoint_stats_ = std::move(stats);
  }

  void SetNow(Instant now) {
    now_ = now;
    if (guests_ != nullptr) guests_->SetNow(now);
    if (engine_) engine_->SetNow(now);
  }
  // `connection` as in transport::EndpointEvent.
  void Handle(transport::Connection* connection, const transport::Event& event);
  // Ends what the events have ended (a job that cannot go on, or is finished).
  void AfterEvent();
  void HandleTimeout();
  Instant NextTimeout() const;
  // As Access::Replace: peers that the rules leave out are disconnected by name.
  void Reload(const AccessRules& rules) {
    access_.Replace(rules, &membership_);
    for (const auto& peer : peers_) CheckAccess(*peer);
  }
  bool HasWork() const { return engine_ && engine_->HasWork(); }  // as DatagramCore's; then AfterEvent
  void Work() { engine_->Work(); }
  void HandleLongestEvent(Duration cpu) { record_.OnLongestEvent(cpu); }
  // The job's state is to be kept as it is after the rounds in progress. KeepsState: it waits for these.
  void KeepState() {
    if (engine_) engine_->images().Begin();
  }
  bool KeepsState() { return engine_ && engine_->images().pending(); }
  // ImageKeeper::logged() has grown.
  void OnLogged() {
    if (start_record_) TellStart();
    if (engine_) engine_->OnLogged();
  }
  // Tells all peers and admits no peer any more. An Ok `why` becomes kCancelled for the workers of a running
  // job.
  void Shutdown(const Status& why);

  // --- Questions ---
  ServerStats Stats() const;
  // Jobs that are over, and how the latest one ended.
  uint64_t jobs_over() const { return record_.jobs_over(); }
  const Status& last_outcome() const { return record_.last().outcome; }
  // No connection is left; the moment to stop after Shutdown.
  bool Idle() const { return peers_.empty(); }

 private:
  // RoundEngineHost
  void Send(Peer& peer, const control::ControlMessage& message) override;
  void Disconnect(Peer& peer, const Status& why) override;
  void RequestAbort(const Status& why) override { abort_ = abort_.value_or(why); }
  Peer* PeerOfRank(uint32_t rank) override { return by_rank_[rank]; }
  void OnTensorRound(const TensorRound& round) override;
  void OnRejected(const Rejection& rejection) override {
    if (events_) events_->OnRejected(rejection, membership_.Describe(rejection.rank));
  }
  void OnWeightBounded(uint32_t rank, float said, float counted) override {
    if (events_) events_->OnWeightBounded(membership_.Describe(rank), said, counted);
  }
  void OnLeftOut(const LeftOut& left_out) override {
    if (events_) events_->OnLeftOut(left_out, membership_.Describe(left_out.rank));
  }

  struct Routing;
  // Events of connections. OnAccepted refuses by closing the connection: then there is no Peer for it.
  void OnAccepted(transport::Connection& connection);
  void OnClosed(Peer& peer, const Status& why);
  void OnControlBytes(Peer& peer, ByteSpan bytes);
  // An error refuses the window.
  Status OnWindowOpened(Peer& peer, const transport::event::WindowOpened& opened);
  transport::ChunkVerdict OnChunk(Peer& peer, const transport::event::Chunk& chunk);
  void OnWindowState(Peer& peer, const transport::event::WindowState& state);
  void OnMessage(Peer& peer, const control::ControlMessage& message);
  void OnMemberMessage(Peer& peer, const control::ControlMessage& message);
  // holder_silent: the worker that holds the rank was asked whether it lives.
  void OnJoin(Peer& peer, const control::Join& join, bool holder_silent = false);
  void OnServerJoin(Peer& peer, const control::ServerJoin& join);
  void OnBenchJoin(Peer& peer, const control::BenchJoin& join);
  void OnGuestMessage(Peer& peer, const control::ControlMessage& message);
  void OnStatusRequest(Peer& peer, const control::StatusRequest& request);
  void OnKick(Peer& peer, uint32_t rank);
  // Ends a connection that may not stay, and says when one soon may not.
  void CheckAccess(Peer& peer);
  void OnBarrier(Peer& peer, const control::Barrier& barrier);
  void OnGiveUp(Peer& peer, const control::GiveUp& give_up);
  void OnLeave(Peer& peer, const control::Leave& leave);
  void Replace(uint32_t rank);
  void StartJob();
  void TellStart();
  // Tells the peer and the log why it may not take part.
  void Refuse(Peer& peer, const Status& why);
  // Refuses or dismisses: `message` and, a moment later, the end of the connection.
  void Dismiss(Peer& peer, const control::ControlMessage& message, const Status& why);
  void MemberGone(Peer& peer, const Status& why);
  void ReleaseBarriers();
  void DecideSuccessions();
  void SayWhatWaits();
  void EndJob(const Status& outcome);

  ServerSettings settings_;
  ServerEvents* events_;
  std::function<transport::EndpointStats()> endpoint_stats_;
  StatusAnswers status_;
  Membership membership_;
  Access access_;
  Guests* guests_;
  ImageKeeper* images_;
  GuestDesk guest_desk_;
  ServerDesk server_desk_;
  HandOverDesk hand_over_;
  Strangers strangers_;
  Successions successions_;
  Waits waits_;
  Roll roll_;
  Grants grants_;
  std::vector<std::unique_ptr<Peer>> peers_;  // in order of acceptance
  std::unordered_map<const transport::Connection*, Peer*> peer_of_;
  std::vector<Peer*> by_rank_;
  std::unique_ptr<RoundEngine> engine_;  // of a started job
  Barriers barriers_;
  uint16_t symbol_bytes_ = 0;
  std::optional<uint64_t> start_record_;  // in the round log, that the workers' Start waits for
  Instant started_at_;                    // before the start: when the first worker joined
  JobRecord record_;
  std::optional<Status> abort_;  // requested, not yet done
  bool shutting_down_ = false;
  Instant now_;
  Instant next_tick_ = Instant::Infinite();
};

}  // namespace longhaul::server
