// What a server knows about itself, as plain values: for logs, progress, `longhaul status` and tests.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/address.h"
#include "base/instant.h"
#include "codec/filler.h"
#include "longhaul/status.h"
#include "longhaul/units.h"
#include "server/bench_sink.h"
#include "server/grants.h"
#include "server/membership.h"
#include "transport/core/connection.h"
#include "transport/core/endpoint.h"

namespace longhaul::server {

// Traffic with workers, over all their connections.
struct TrafficTotals {
  uint64_t bytes_received = 0;  // UDP payload, up
  uint64_t bytes_sent = 0;      // UDP payload, down
  uint64_t chunk_bytes_received = 0;
  uint64_t chunk_bytes_sent = 0;
  uint64_t packets_received = 0;
  uint64_t packets_sent = 0;
  uint64_t packets_lost = 0;     // of ours, raw
  uint64_t retransmissions = 0;  // of ours
  uint64_t repair_sent = 0;
  uint64_t repair_received = 0;
  uint64_t chunks_repaired = 0;
  uint64_t duplicates_dropped = 0;
  uint64_t bad_tag_dropped = 0;
  uint64_t malformed_dropped = 0;
  uint64_t late_dropped = 0;

  void Add(const transport::ConnectionStats& stats);
};

struct MemberStats {
  uint32_t rank = 0;
  Member::State state = Member::State::kEmpty;
  uint64_t excluded = 0;    // tensor rounds that were over without it
  std::string site;         // as it says
  std::string identity;     // as it has proved: IdentityText
  std::string_view cipher;  // of its packets; "" without keys, or while it is gone
  Address peer;
  uint64_t incarnation = 0;
  Duration silent{0};  // since it was last heard
  Duration smoothed_rtt{0};
  Duration min_rtt{0};
  double loss = 0;  // recent raw loss of what we send to it
  TrafficTotals traffic;
  uint64_t chunks = 0;    // contributions added
  uint64_t repaired = 0;  // of them rebuilt by FEC
  uint64_t lost = 0;      // contributions that did not arrive, or were rejected
  uint64_t rejected = 0;  // of them refused by the guard (server/contribution_guard.h)
  uint64_t close_reasons[6] = {};
  GrantStats::Worker grant;
  // For how long what held our own sending to it back (ConnectionStats::limited).
  std::array<Duration, transport::kRateLimiters> limited{};
};

// A round of the job: of every tensor that took part in it.
struct JobRound {
  uint64_t round = 0;
  Duration duration{0};  // from the first window that opened to the last chunk that was final
  Duration interval{0};  // since the previous round's end (or the job's start)
  uint32_t tensors = 0;
  uint32_t contributors = 0;  // the most of any tensor
  uint32_t last_rank = 0;
  double loss = 0;                      // share of low chunks that did not arrive
  uint32_t low_chunks = 0;              // expected, over all workers
  uint32_t low_lost = 0;                // of them did not arrive
  std::array<uint32_t, 6> closed = {};  // the workers' windows, by wire::CloseReason
  uint32_t repaired_chunks = 0;
  uint32_t filled_chunks = 0;
  uint32_t lost_chunks = 0;
  uint32_t rejected_chunks = 0;   // of them refused by the guard
  uint32_t tolerated_chunks = 0;  // of them, in windows that lost no more than the bubble-filling threshold
  uint32_t excluded = 0;          // workers that the round did not wait for, over its tensors
  codec::FillReason fill_reason = codec::FillReason::kNoneLost;  // the weightiest of its tensors
  uint64_t chunk_bytes_up = 0;                                   // during the interval
  uint64_t chunk_bytes_down = 0;
};

struct ServerStats {
  enum class Phase : uint8_t { kWaiting, kRunning };

  Phase phase = Phase::kWaiting;
  std::string job;
  std::string security;               // tls-psk, tls-certificates or insecure
  std::string identity;               // the server's key or certificate, for people; "insecure" without
  transport::EndpointStats endpoint;  // what was dropped, refused and limited before any connection
  uint64_t strangers = 0;             // connections that have not joined, now
  uint64_t strangers_displaced = 0;   // of them, those that had to make room (Coordinator::kMaxStrangers)
  std::string policy;                 // as the operator decided
  double bubble_threshold = 0;        // loss of a window above which its lost chunks are filled, 0..1
  uint32_t world_size = 0;
  uint32_t joined = 0;
  uint64_t jobs_finished = 0;
  uint64_t jobs_aborted = 0;
  uint64_t joins_refused = 0;
  uint64_t bench_connections = 0;  // load generators that are here
  uint64_t bench_served = 0;       // ever
  uint64_t bench_bytes = 0;        // distinct chunk bytes of theirs
  Duration running{0};             // since the start barrier opened
  uint64_t rounds = 0;
  uint64_t tensors = 0;
  uint64_t elements = 0;
  uint64_t filled = 0;
  uint64_t tolerated = 0;
  uint64_t repaired = 0;
  uint64_t lost = 0;
  uint64_t rejected = 0;
  uint64_t low_chunks = 0;  // expected, over all rounds
  uint64_t low_lost = 0;    // of them did not arrive
  uint64_t duplicate_contributions = 0;
  uint64_t taken_and_dropped = 0;  // policy residual: duplicates and rejected chunks that nobody repays
  uint64_t late_chunks = 0;
  uint64_t old_windows_refused = 0;
  uint64_t late_windows_taken = 0;
  uint64_t epoch_refused = 0;
  uint64_t results_outdated = 0;
  uint64_t memory_bytes = 0;          // of the tensors' state, as planned
  uint64_t memory_member_bytes = 0;   // beside it for each member's connection, at most
  uint64_t memory_budget_bytes = 0;   // that a job may take (server/memory_budget.h)
  uint64_t pulls_held = 0;            // waited for memory (RoundEngine::kMaxPinnedModels, kMaxPullsOfTensor)
  uint64_t result_chunks_lost = 0;    // downlink lossy: missed by workers,
  uint64_t result_chunks_repaid = 0;  // and here since, by later results
  uint64_t state_hashes = 0;          // downlink lossy: told to the workers
  Duration round_p50{0};              // of the last 4,096 rounds
  Duration round_p99{0};
  TrafficTotals traffic;  // this job's members, also those who are gone
  GrantStats grants;
  std::vector<MemberStats> members;
};

struct Rejection;  // server/round_engine.h

// Who is told what happens. Called from inside the core's events: must not call back into it.
class ServerEvents {
 public:
  virtual ~ServerEvents() = default;
  virtual void OnJoin(uint32_t rank, const Member& member, bool replaces) {
    (void)rank, (void)member, (void)replaces;
  }
  // who: IdentityText of it, "" when it has none.
  virtual void OnRefused(const Address& peer, const std::string& who, const Status& why) {
    (void)peer, (void)who, (void)why;
  }
  // Somebody did not get as far as that. The address need not be his, and it happens as often as he likes.
  virtual void OnHandshakeFailed(const Address& peer, const Status& why) { (void)peer, (void)why; }
  virtual void OnStart(uint32_t workers, uint32_t symbol_bytes) { (void)workers, (void)symbol_bytes; }
  virtual void OnRound(const JobRound& round, const ServerStats& stats) { (void)round, (void)stats; }
  // A push has values that were refused; `who` describes the worker.
  virtual void OnRejected(const Rejection& rejection, const std::string& who) { (void)rejection, (void)who; }
  // Ok: an orderly goodbye.
  virtual void OnLeave(uint32_t rank, const std::string& who, const Status& why) {
    (void)rank, (void)who, (void)why;
  }
  // A load generator was let in (`totals` null), or is gone.
  virtual void OnBench(const Address& peer, const std::string& who, const std::string& site,
                       const BenchTotals* totals) {
    (void)peer, (void)who, (void)site, (void)totals;
  }
  // The job is over. `stats` are its last; Ok: every worker has left orderly.
  virtual void OnJobOver(const Status& outcome, const ServerStats& stats) { (void)outcome, (void)stats; }
};

}  // namespace longhaul::server
