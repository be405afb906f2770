// What the server knows about its jobs, as ServerStats.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/counters.h"
#include "base/instant.h"
#include "server/job/messages.h"
#include "server/member/membership.h"
#include "server/member/peer.h"
#include "server/report/round_log.h"
#include "server/report/server_stats.h"
#include "server/round/round_engine.h"

namespace longhaul::server {

// Traffic with the members of a job, over connections that are there (by_rank: null when gone) and over.
class MemberTraffic {
 public:
  explicit MemberTraffic(uint32_t ranks) : gone_by_rank_(ranks) {}

  void OnGone(uint32_t rank, const transport::ConnectionStats& stats) {
    Add(stats, &gone_);
    Add(stats, &gone_by_rank_[rank]);
  }
  transport::ConnectionStats Total(const std::vector<Peer*>& by_rank) const {
    transport::ConnectionStats total = gone_;
    for (const Peer* peer : by_rank) {
      if (peer != nullptr) Add(peer->connection->stats(), &total);
    }
    return total;
  }
  // Of the rank's connections that are over.
  const transport::ConnectionStats& of(uint32_t rank) const { return gone_by_rank_[rank]; }
  void Reset() { *this = MemberTraffic(static_cast<uint32_t>(gone_by_rank_.size())); }

  static void Add(const transport::ConnectionStats& counts, transport::ConnectionStats* sum) {
    AddCounts(std::span<const Counter<transport::ConnectionStats>>(transport::kConnectionCounters), counts,
              sum);
  }

 private:
  transport::ConnectionStats gone_;
  std::vector<transport::ConnectionStats> gone_by_rank_;
};

// Bytes that a job's tensors could come to if the machine had them (server/tensor/memory_budget.h).
uint64_t PlannedMemory(ServerSettings settings);

void AddKeeperStats(const KeeperStats& kept, ServerStats* stats);

// With what the settings say.
ServerStats StatsOf(const ServerSettings& settings);

// The rounds and the traffic of the job in progress, and how those before it ended. Not thread-safe.
class JobRecord {
 public:
  explicit JobRecord(uint32_t ranks) : traffic_(ranks) {}

  // --- Events ---
  void OnStart(Instant now, const std::vector<Peer*>& by_rank);
  void OnMemberGone(uint32_t rank, const transport::ConnectionStats& stats) { traffic_.OnGone(rank, stats); }
  void OnRefused() { ++joins_refused_; }
  void OnLongestEvent(Duration cpu) { longest_event_ = cpu; }
  // As RoundLog's; with the traffic since the round before. REQUIRES: a job is running.
  std::vector<JobRound> Add(const TensorRound& round, size_t tensors, Instant now,
                            const std::vector<Peer*>& by_rank);
  std::optional<JobRound> Flush(const std::vector<Peer*>& by_rank);
  // rounds: of the job that is over.
  void OnEnd(const Status& outcome, uint64_t rounds, Instant now);

  // --- Questions ---
  uint64_t jobs_over() const { return jobs_finished_ + jobs_aborted_; }
  const LastJob& last() const { return last_; }
  // engine: null before the start. REQUIRES: stats->grants is set.
  void AddTo(const Membership& membership, const std::vector<Peer*>& by_rank, const RoundEngine* engine,
             Instant now, ServerStats* stats) const;

 private:
  void AddTraffic(const std::vector<Peer*>& by_rank, JobRound* round);

  MemberTraffic traffic_;
  std::optional<RoundLog> rounds_;       // of a running job
  transport::ConnectionStats reported_;  // as of the last round
  uint64_t jobs_finished_ = 0;
  uint64_t jobs_aborted_ = 0;
  uint64_t joins_refused_ = 0;
  Duration longest_event_{0};
  LastJob last_;
};

}  // namespace longhaul::server
