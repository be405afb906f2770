// What a server knows about itself, as plain values: for logs, progress, `longhaul status` and tests.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/address.h"
#include "base/instant.h"
#include "codec/policy/filler.h"
#include "longhaul/job.h"
#include "longhaul/stats.h"
#include "longhaul/status.h"
#include "longhaul/units.h"
#include "server/grants/grants.h"
#include "server/member/membership.h"
#include "transport/core/connection/connection.h"
#include "transport/core/endpoint/endpoint.h"

namespace longhaul::server {

// What has come from one guest (server/job/guests.h) since it was let in.
struct GuestTotals {
  std::string site;  // as it says
  Duration elapsed{0};
  uint64_t high_bytes = 0;  // distinct chunks, repaired ones included
  uint64_t low_bytes = 0;
  uint64_t chunks_repaired = 0;
  uint64_t windows_closed = 0;
};

struct GuestStats {
  uint64_t connections = 0;  // now
  uint64_t served = 0;       // ever
  uint64_t bytes = 0;        // distinct chunk bytes, of all guests ever
};

struct MemberStats {
  uint32_t rank = 0;
  Member::State state = Member::State::kEmpty;
  uint64_t excluded = 0;  // tensor rounds that were over without it
  bool lags = false;      // a round in progress does not wait for it
  std::string site;       // as it says
  std::string identity;   // as it has proved: IdentityText
  Address peer;
  uint64_t incarnation = 0;
  uint32_t stands_for = 1;      // workers, as admitted
  float weight = 1;             // as it says: with its last push, at first at its join
  float counted_weight = 0;     // that push as it counted (server/member/weight_ledger.h); 0: none yet
  double weight_share = 0;      // of what counted in the last 64 rounds of tensors
  double max_weight_share = 1;  // of a round, with all members
  uint64_t weights_bounded = 0;
  Duration silent{0};  // since it was last heard
  // Counts over all its connections, states of the present one.
  transport::ConnectionStats traffic;
  uint64_t chunks = 0;    // contributions added
  uint64_t repaired = 0;  // of them rebuilt by FEC
  uint64_t lost = 0;      // contributions that did not arrive, or were rejected
  uint64_t rejected = 0;  // of them refused by the guard (server/tensor/contribution_guard.h)
  uint64_t close_reasons[6] = {};
  GrantStats::Worker grant;
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

// kServerCounters says what each counter means.
struct ServerStats {
  enum class Phase : uint8_t { kWaiting, kRunning };

  Phase phase = Phase::kWaiting;
  std::string job;
  std::string security;               // tls-psk, tls-certificates or insecure
  std::string identity;               // the server's key or certificate, for people; "insecure" without
  transport::EndpointStats endpoint;  // what was dropped, refused and limited before any connection
  JobSpec job_spec;                   // as the operator decided
  uint32_t world_size = 0;
  uint32_t joined = 0;
  Duration running{0};     // since the start barrier opened
  uint64_t strangers = 0;  // the first counter
  uint64_t strangers_displaced = 0;
  uint64_t jobs_finished = 0;
  uint64_t jobs_aborted = 0;
  uint64_t joins_refused = 0;
  uint64_t bench_connections = 0;
  uint64_t bench_served = 0;
  uint64_t bench_bytes = 0;
  uint64_t rounds = 0;
  uint64_t tensors = 0;
  uint64_t elements = 0;
  uint64_t filled = 0;
  uint64_t tolerated = 0;
  uint64_t repaired = 0;
  uint64_t lost = 0;
  uint64_t rejected = 0;
  uint64_t low_chunks = 0;
  uint64_t low_lost = 0;
  uint64_t duplicate_contributions = 0;
  uint64_t taken_and_dropped = 0;
  uint64_t late_chunks = 0;
  uint64_t old_windows_refused = 0;
  uint64_t late_windows_taken = 0;
  uint64_t weights_bounded = 0;
  uint64_t epoch_refused = 0;
  uint64_t results_outdated = 0;
  uint64_t memory_bytes = 0;
  uint64_t memory_member_bytes = 0;
  uint64_t memory_budget_bytes = 0;
  uint64_t pulls_held = 0;
  uint64_t declarations_held = 0;
  uint64_t barriers_refused = 0;
  uint64_t result_chunks_lost = 0;
  uint64_t result_chunks_repaid = 0;
  uint64_t state_hashes = 0;
  uint64_t callbacks_threw = 0;
  uint64_t checkpoints_written = 0;
  uint64_t checkpoints_failed = 0;
  uint64_t checkpoints_skipped = 0;
  uint64_t checkpoint_rounds = 0;
  uint64_t checkpoint_bytes = 0;
  Duration checkpoint_write{0};
  uint64_t round_log_records = 0;
  uint64_t round_log_failed = 0;
  uint64_t servers = 1;
  uint64_t server = 0;
  uint64_t map_epoch = 0;
  uint64_t servers_lost = 0;
  uint64_t longest_event_elements = 0;
  Duration longest_event{0};
  Duration round_p50{0};  // after the last counter; of the last 4,096 rounds
  Duration round_p99{0};
  transport::ConnectionStats traffic;  // counts of this job's members, also of those that are gone
  GrantStats grants;
  std::vector<std::string> waits;  // what the job waits for now, in words
  std::vector<MemberStats> members;
};

// Of the job, then of the server.
inline constexpr Counter<ServerStats> kServerCounters[] = {
    {&ServerStats::rounds, "rounds", "rounds of the job"},
    {&ServerStats::tensors, "tensors", "tensors declared", CounterKind::kState},
    {&ServerStats::elements, "elements", "their elements", CounterKind::kState},
    {&ServerStats::repaired, "repaired_chunks", "contributions rebuilt by FEC"},
    {&ServerStats::filled, "filled_chunks", "lost contributions in windows above the bubble threshold"},
    {&ServerStats::tolerated, "tolerated_chunks", "lost contributions in the others"},
    {&ServerStats::lost, "lost_chunks",
     "contributions of both classes that did not arrive, or were rejected"},
    {&ServerStats::rejected, "rejected_chunks", "contributions that the guard refused"},
    {&ServerStats::low_chunks, "low_chunks", "contributions of the low class that were expected"},
    {&ServerStats::low_lost, "low_lost", "of them, did not arrive"},
    {&ServerStats::duplicate_contributions, "duplicate_contributions",
     "chunks of a worker whose predecessor had delivered them"},
    {&ServerStats::taken_and_dropped, "taken_and_dropped",
     "policy residual: duplicates and rejected chunks, which count neither now nor later"},
    {&ServerStats::late_chunks, "late_chunks", "chunks of a round that was over"},
    {&ServerStats::old_windows_refused, "old_windows_refused", "windows of rounds long over"},
    {&ServerStats::weights_bounded, "weights_bounded",
     "windows that counted with less than the weight that they said (--max-weight-share)"},
    {&ServerStats::late_windows_taken, "late_windows_taken",
     "windows of a round that went on without them, taken for a later one"},
    {&ServerStats::epoch_refused, "epoch_refused", "policy shift: windows of another epoch"},
    {&ServerStats::results_outdated, "results_outdated", "results given up for newer ones"},
    {&ServerStats::memory_bytes, "memory_bytes", "of the tensors' state, as planned", CounterKind::kState},
    {&ServerStats::memory_member_bytes, "memory_member_bytes",
     "beside it for each member's connection, at most", CounterKind::kState},
    {&ServerStats::memory_budget_bytes, "memory_budget_bytes", "that a job may take", CounterKind::kState},
    {&ServerStats::pulls_held, "pulls_held",
     "pulls that waited, since the values that others were still receiving took four times the model"},
    {&ServerStats::declarations_held, "declarations_held",
     "declarations beyond their worker's part, which waited until others said the same"},
    {&ServerStats::barriers_refused, "barriers_refused", "barriers beyond what their worker may open"},
    {&ServerStats::result_chunks_lost, "result_chunks_lost",
     "downlink lossy: result chunks that workers missed"},
    {&ServerStats::result_chunks_repaid, "result_chunks_repaid", "of them, here since by later results"},
    {&ServerStats::state_hashes, "state_hashes", "downlink lossy: state hashes sent"},
    {&ServerStats::longest_event_elements, "longest_event_elements",
     "of tensors, that one event of this job worked on; what is more waits its turn", CounterKind::kState},
    {&ServerStats::longest_event, "longest_event",
     "the most CPU time that one event has taken since the start, to 0.25 ms; while it lasts the server "
     "reads no packet"},
    {&ServerStats::jobs_finished, "jobs_finished", "jobs that ended well since the server started"},
    {&ServerStats::jobs_aborted, "jobs_aborted", "jobs that were aborted"},
    {&ServerStats::joins_refused, "joins_refused", "joins refused"},
    {&ServerStats::strangers, "strangers", "connections that have not joined, now", CounterKind::kState},
    {&ServerStats::strangers_displaced, "strangers_displaced", "of them, those that had to make room"},
    {&ServerStats::bench_connections, "bench_connections", "load generators served now", CounterKind::kState},
    {&ServerStats::bench_served, "bench_served", "load generators served since the start"},
    {&ServerStats::bench_bytes, "bench_bytes", "distinct chunk bytes of theirs"},
    {&ServerStats::checkpoints_written, "checkpoints_written", "checkpoints on the disk since the start"},
    {&ServerStats::checkpoints_failed, "checkpoints_failed",
     "checkpoints that could not be written, the log says why; the one before is still there: an alarm"},
    {&ServerStats::checkpoints_skipped, "checkpoints_skipped",
     "checkpoints that were due while the one before was still being written, or in the middle of a job's "
     "last round"},
    {&ServerStats::checkpoint_rounds, "checkpoint_rounds",
     "rounds, those before a restart included, that the last one is after", CounterKind::kState},
    {&ServerStats::checkpoint_bytes, "checkpoint_bytes", "of its files", CounterKind::kState},
    {&ServerStats::checkpoint_write, "checkpoint_write", "that writing it took"},
    {&ServerStats::round_log_records, "round_log_records",
     "states of a tensor that were written to the round log"},
    {&ServerStats::round_log_failed, "round_log_failed",
     "states that could not be written there: a server that dies now loses rounds"},
    {&ServerStats::servers, "servers", "servers of the job", CounterKind::kState},
    {&ServerStats::server, "server", "which of them this is; the first is 0", CounterKind::kState},
    {&ServerStats::map_epoch, "map_epoch", "epoch of the shard map; 0: there is one server",
     CounterKind::kState},
    {&ServerStats::servers_lost, "servers_lost",
     "at the first server: the others that are not here; while it is above 0 no job starts",
     CounterKind::kState},
    {&ServerStats::callbacks_threw, "callbacks_threw",
     "calls of an embedding program's callbacks that ended with an exception, which is logged and ignored"},
};

struct Rejection;  // server/round/round_host.h
struct LeftOut;    // ditto

// Receives the server's events. Called from inside the core: must not call back into it.
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
  // A handshake failed. The address may be forged, and strangers can cause any number of these.
  virtual void OnHandshakeFailed(const Address& peer, const Status& why) { (void)peer, (void)why; }
  virtual void OnStart(uint32_t workers, uint32_t symbol_bytes) { (void)workers, (void)symbol_bytes; }
  virtual void OnRound(const JobRound& round, const ServerStats& stats) { (void)round, (void)stats; }
  // A push has values that were refused; `who` describes the worker.
  virtual void OnWeightBounded(const std::string& who, float weight, float counted) {
    (void)who, (void)weight, (void)counted;
  }
  virtual void OnRejected(const Rejection& rejection, const std::string& who) { (void)rejection, (void)who; }
  // A round goes on without a worker that `who` describes.
  virtual void OnLeftOut(const LeftOut& left_out, const std::string& who) { (void)left_out, (void)who; }
  // Every 5 s of a wait: what waits for whom, in words, and the ranks.
  virtual void OnWaiting(const std::string& text, const std::vector<uint32_t>& missing) {
    (void)text, (void)missing;
  }
  // Ok: an orderly goodbye.
  virtual void OnLeave(uint32_t rank, const std::string& who, const Status& why) {
    (void)rank, (void)who, (void)why;
  }
  // An operator (IdentityText) has kicked the rank of `who`.
  virtual void OnKick(uint32_t rank, const std::string& who, const std::string& by) {
    (void)rank, (void)who, (void)by;
  }
  // The workers wait for other servers: this one is to hand the job over, as Daemon::BeginHandOver.
  virtual void OnHandOver() {}
  // An operator (IdentityText) wants that; or `why` it does not happen.
  virtual void OnHandOverAsked(const std::string& by, const Status& why) { (void)by, (void)why; }
  // The certificate of `who` ("the server" is us) expires in so many seconds; negative: it has.
  virtual void OnExpiring(const std::string& who, int64_t seconds) { (void)who, (void)seconds; }
  // Another server of the job, as ServerDesk::Describe; `why` is Ok when it has come, else why it is lost.
  virtual void OnServer(const std::string& server, const std::string& who, const Status& why) {
    (void)server, (void)who, (void)why;
  }
  // A load generator was let in (`totals` null), or is gone.
  virtual void OnBench(const Address& peer, const std::string& who, const std::string& site,
                       const GuestTotals* totals) {
    (void)peer, (void)who, (void)site, (void)totals;
  }
  // The job is over. `stats` are its last; Ok: every worker has left orderly.
  virtual void OnJobOver(const Status& outcome, const ServerStats& stats) { (void)outcome, (void)stats; }
};

}  // namespace longhaul::server
