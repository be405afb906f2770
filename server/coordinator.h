// The server's side of every connection: who is in the job, when it starts, and how it ends. What happens in
// between is the round engine's.
//
//   strangers --Join--> members --(all in)--> Start --rounds--> Leave by all: finished
//                                                       \------> too few left: aborted, everyone is told why
// Then the next job may come: the coordinator is empty again.
//
// Observer of all connections; needs no endpoint. Before every event SetNow, after every event AfterEvent.
// A worker's Leave is answered by closing its connection with Ok. Not thread-safe.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/bench_sink.h"
#include "server/grants.h"
#include "server/membership.h"
#include "server/peer.h"
#include "server/round_engine.h"
#include "server/round_log.h"
#include "server/server_stats.h"
#include "server/settings.h"
#include "transport/core/connection.h"
#include "transport/core/endpoint.h"

namespace longhaul::server {

class Coordinator final : public transport::ConnectionObserver, private RoundEngineHost {
 public:
  // Connections that have not said what they want, or only ask for the status: of all, and of one source (who
  // it is by its certificate, else where it is from: the IPv4 address, the first 64 bits of IPv6). For one
  // more the oldest one of that source, or of the source that has the most, has to go: nobody is kept out by
  // connections that do nothing.
  static constexpr size_t kMaxStrangers = 256;
  static constexpr size_t kMaxStrangersPerSource = 64;
  // A whole job may come at once, and from one machine.
  static size_t MaxStrangers(uint32_t world_size) { return std::max(kMaxStrangers, 2 * size_t{world_size}); }
  static size_t MaxStrangersPerSource(uint32_t world_size) {
    return std::max(kMaxStrangersPerSource, 2 * size_t{world_size});
  }
  // A connection that does not join for this long after it was accepted is closed.
  static constexpr Duration kJoinTimeout = std::chrono::seconds(5);
  // A status is made at most this often, whoever asks.
  static constexpr Duration kStatusAge = std::chrono::milliseconds(100);
  // So long a refused or dismissed peer has to read why, before its connection is closed with the same
  // reason.
  static constexpr Duration kLinger = std::chrono::milliseconds(500);
  static constexpr Duration kTick = std::chrono::milliseconds(200);
  static constexpr size_t kMaxBarriers = 64;  // named points that are waited for at once

  // `events` may be null. status_json makes the answer to a StatusRequest; it may be empty.
  // receive_window: of every connection, as it is before any grant.
  Coordinator(ServerSettings settings, ServerEvents* events,
              std::function<std::string(const ServerStats&)> status_json,
              ByteCount receive_window = transport::ConnectionOptions().receive_window);
  ~Coordinator() override;

  // Where the endpoint's counters in Stats come from; may be empty.
  void SetEndpointStats(std::function<transport::EndpointStats()> stats) {
    endpoint_stats_ = std::move(stats);
  }

  void SetNow(Instant now);
  // A connection was accepted. Null refuses it.
  transport::ConnectionObserver* Accept(transport::Connection& connection);
  // Ends what the event has ended (a job that cannot go on, or is finished). True when there was something.
  bool AfterEvent();
  void HandleTimeout();
  Instant NextTimeout() const;
  // Tells everybody and takes no one any more. An Ok `why` becomes kCancelled for the workers of a running
  // job.
  void Shutdown(const Status& why);

  // --- Questions ---
  ServerStats Stats() const;
  // Jobs that are over, and how the latest one ended.
  uint64_t jobs_over() const { return jobs_finished_ + jobs_aborted_; }
  const Status& last_outcome() const { return last_outcome_; }
  // No connection is left; the moment to stop after Shutdown.
  bool Idle() const { return peers_.empty(); }

  // --- transport::ConnectionObserver ---
  void OnConnected(transport::Connection& connection) override;
  void OnClosed(transport::Connection& connection, const Status& why) override;
  void OnControlData(transport::Connection& connection, ByteSpan bytes) override;
  Status OnWindowOpened(transport::Connection& connection, transport::WindowKey key,
                        const wire::WindowOpenFrame& open) override;
  transport::ChunkVerdict OnChunk(transport::Connection& connection, transport::WindowKey key,
                                  wire::ReliabilityClass reliability, uint32_t sequence, ByteSpan chunk,
                                  bool repaired) override;
  void OnWindowProgress(transport::Connection& connection, transport::WindowKey key) override;
  void OnWindowClosed(transport::Connection& connection, transport::WindowKey key, wire::CloseReason reason,
                      const transport::WindowReceipt& receipt,
                      const transport::WindowTxStats& stats) override;

 private:
  struct BarrierWaiter {
    uint32_t rank = 0;
    uint32_t request = 0;
  };

  // RoundEngineHost
  void Send(Peer& peer, const control::ControlMessage& message) override;
  void Disconnect(Peer& peer, const Status& why) override;
  void RequestAbort(const Status& why) override;
  Peer* PeerOfRank(uint32_t rank) override { return by_rank_[rank]; }
  void OnTensorRound(const TensorRound& round) override;
  void OnRejected(const Rejection& rejection) override;

  void MakeRoomFor(const transport::Connection& connection);
  Peer& Heard(transport::Connection& connection);
  void OnMessage(Peer& peer, const control::ControlMessage& message);
  void OnMemberMessage(Peer& peer, const control::ControlMessage& message);
  void OnJoin(Peer& peer, const control::Join& join);
  void OnBenchJoin(Peer& peer, const control::BenchJoin& join);
  void OnBenchMessage(Peer& peer, const control::ControlMessage& message);
  void SendBenchReport(Peer& peer, const BenchTotals& totals);
  void BenchGone(Peer& peer);
  void OnStatusRequest(Peer& peer, const control::StatusRequest& request);
  void OnBarrier(Peer& peer, const control::Barrier& barrier);
  void OnLeave(Peer& peer, const control::Leave& leave);
  Status CheckChunkBytes(const Peer& peer) const;
  void Replace(uint32_t rank, uint64_t incarnation);
  void Welcome(Peer& peer);
  void SendStart(Peer& peer);
  void StartJob();
  // Tells the peer and the log why it may not take part.
  void Refuse(Peer& peer, const Status& why);
  // Refuses or dismisses: `message` and, a moment later, the end of the connection.
  void Dismiss(Peer& peer, const control::ControlMessage& message, const Status& why);
  void MemberGone(Peer& peer, const Status& why);
  void ReleaseBarriers();
  void Report(const JobRound& round);
  void EndJob(const Status& outcome);
  TrafficTotals Traffic() const;

  ServerSettings settings_;
  ServerEvents* events_;
  std::function<std::string(const ServerStats&)> status_json_;
  std::function<transport::EndpointStats()> endpoint_stats_;
  std::optional<std::string> status_;  // as of status_at_
  Instant status_at_;
  Membership membership_;
  BenchSink bench_;
  uint64_t bench_served_ = 0;
  uint64_t bench_bytes_ = 0;  // of load generators that are gone
  Grants grants_;
  std::vector<std::unique_ptr<Peer>> peers_;  // in order of acceptance
  std::vector<Peer*> by_rank_;
  std::unique_ptr<RoundEngine> engine_;  // of a started job
  std::optional<RoundLog> rounds_;
  std::map<std::string, std::vector<BarrierWaiter>> barriers_;
  uint16_t symbol_bytes_ = 0;
  Instant started_at_;
  TrafficTotals reported_;  // as of the last round
  TrafficTotals gone_;      // of members' connections that are over
  std::vector<TrafficTotals> gone_by_rank_;
  std::optional<Status> abort_;  // requested, not yet done
  bool shutting_down_ = false;
  uint64_t jobs_finished_ = 0;
  uint64_t jobs_aborted_ = 0;
  uint64_t joins_refused_ = 0;
  uint64_t strangers_displaced_ = 0;
  Status last_outcome_;
  Instant now_;
  Instant next_tick_ = Instant::Infinite();
};

}  // namespace longhaul::server
