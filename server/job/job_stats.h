// What the server knows about the job in progress, as ServerStats.
#pragma once

#include <span>
#include <vector>

#include "base/counters.h"
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

// With what the settings say.
ServerStats StatsOf(const ServerSettings& settings);
void AddRounds(const RoundEngine& engine, const RoundLog& rounds, ServerStats* stats);
// engine: null before the start. REQUIRES: stats->grants is set.
void AddMembers(const Membership& membership, const std::vector<Peer*>& by_rank, const MemberTraffic& traffic,
                const RoundEngine* engine, Instant now, ServerStats* stats);

}  // namespace longhaul::server
