#include "server/job/job_stats.h"

#include <algorithm>

#include "codec/chunk/chunk.h"
#include "server/job/authorization.h"
#include "server/tensor/memory_budget.h"

namespace longhaul::server {
namespace {

void AddRounds(const RoundEngine& engine, const RoundLog& rounds, ServerStats* stats) {
  const EngineStats& counts = engine.stats();
  stats->rounds = rounds.rounds();
  stats->low_chunks = rounds.low_chunks();
  stats->low_lost = rounds.low_lost();
  stats->round_p50 = rounds.Percentile(0.50);
  stats->round_p99 = rounds.Percentile(0.99);
  stats->tensors = engine.tensor_count();
  stats->elements = engine.elements();
  stats->filled = counts.filled;
  stats->tolerated = counts.tolerated;
  stats->duplicate_contributions = counts.duplicate_contributions;
  stats->taken_and_dropped = counts.taken_and_dropped;
  stats->late_chunks = counts.late_chunks;
  stats->old_windows_refused = counts.old_windows_refused;
  stats->late_windows_taken = counts.late_windows_taken;
  stats->weights_bounded = counts.weights_bounded;
  stats->epoch_refused = counts.epoch_refused;
  const ResultSender::Stats results = engine.results().stats();
  stats->results_outdated = results.outdated;
  stats->memory_bytes = engine.memory().taken();
  stats->memory_member_bytes = engine.memory().per_member();
  stats->memory_budget_bytes = engine.memory().total();
  stats->pulls_held = counts.pulls_held;
  stats->declarations_held = engine.declarations_held();
  stats->result_chunks_lost = results.chunks.lost;
  stats->result_chunks_repaid = results.chunks.repaid;
  stats->state_hashes = counts.state_hashes;
  stats->longest_event_elements = counts.longest_event_elements;
}

void AddMembers(const Membership& membership, const std::vector<Peer*>& by_rank, const MemberTraffic& traffic,
                const RoundEngine* engine, Instant now, ServerStats* stats) {
  for (uint32_t rank = 0; rank < membership.world_size(); ++rank) {
    const Member& member = membership.member(rank);
    if (member.state == Member::State::kEmpty) continue;
    MemberStats& m = stats->members.emplace_back();
    m.rank = rank;
    m.state = member.state;
    m.site = member.site;
    m.identity = IdentityText(member.identity);
    m.peer = member.peer;
    m.incarnation = member.incarnation;
    m.weight = member.weight;
    m.max_weight_share = membership.WeightShare(rank);
    m.stands_for = membership.stands_for()[rank];
    m.traffic = traffic.of(rank);
    m.silent = now - member.last_heard;
    if (const Peer* peer = by_rank[rank]; peer != nullptr) {
      const transport::ConnectionStats connection = peer->connection->stats();
      m.silent = now - peer->last_heard;
      m.traffic = connection;
      MemberTraffic::Add(traffic.of(rank), &m.traffic);
      m.grant = stats->grants.by_rank[rank];
    }
    if (engine != nullptr) {
      const EngineStats::Rank& counts = engine->stats().by_rank[rank];
      m.chunks = counts.chunks;
      m.repaired = counts.repaired;
      m.lost = counts.lost;
      m.rejected = counts.rejected;
      m.excluded = counts.excluded;
      m.weights_bounded = counts.weights_bounded;
      if (counts.said_weight > 0) m.weight = counts.said_weight;
      m.counted_weight = counts.counted_weight;
      m.weight_share = counts.weight_share;
      m.lags = engine->Lags(rank);
      std::copy(std::begin(counts.close_reasons), std::end(counts.close_reasons), m.close_reasons);
      stats->repaired += counts.repaired;
      stats->lost += counts.lost;
      stats->rejected += counts.rejected;
    }
  }
}

}  // namespace

uint64_t PlannedMemory(ServerSettings settings) {
  settings.memory = 0;
  const auto symbol = static_cast<uint16_t>(settings.max_datagram.value());
  return MemoryBudget(settings, codec::ChunkElementsFor(symbol)).total();
}

void AddKeeperStats(const KeeperStats& kept, ServerStats* stats) {
  stats->checkpoints_written = kept.written;
  stats->checkpoints_failed = kept.failed;
  stats->checkpoints_skipped = kept.skipped;
  stats->checkpoint_rounds = kept.rounds;
  stats->checkpoint_bytes = kept.bytes;
  stats->checkpoint_write = kept.last_write;
  stats->round_log_records = kept.log_records;
  stats->round_log_failed = kept.log_failed;
}

ServerStats StatsOf(const ServerSettings& settings) {
  ServerStats stats;
  stats.job = settings.job;
  stats.security = settings.security;
  stats.identity = settings.identity;
  stats.job_spec = settings;
  stats.world_size = settings.world_size;
  return stats;
}

void JobRecord::OnStart(Instant now, const std::vector<Peer*>& by_rank) {
  rounds_.emplace(now);
  reported_ = traffic_.Total(by_rank);
}

std::vector<JobRound> JobRecord::Add(const TensorRound& round, size_t tensors, Instant now,
                                     const std::vector<Peer*>& by_rank) {
  std::vector<JobRound> over = rounds_->Add(round, tensors, now);
  for (JobRound& each : over) AddTraffic(by_rank, &each);
  return over;
}

std::optional<JobRound> JobRecord::Flush(const std::vector<Peer*>& by_rank) {
  std::optional<JobRound> last = rounds_->Flush();
  if (last) AddTraffic(by_rank, &*last);
  return last;
}

void JobRecord::AddTraffic(const std::vector<Peer*>& by_rank, JobRound* round) {
  const transport::ConnectionStats traffic = traffic_.Total(by_rank);
  round->chunk_bytes_up = traffic.chunk_bytes_received - reported_.chunk_bytes_received;
  round->chunk_bytes_down = traffic.chunk_bytes_sent - reported_.chunk_bytes_sent;
  reported_ = traffic;
}

void JobRecord::OnEnd(const Status& outcome, uint64_t rounds, Instant now) {
  ++(outcome.ok() ? jobs_finished_ : jobs_aborted_);
  last_ = {.outcome = outcome, .rounds = rounds, .ended = now};
  rounds_.reset();
  traffic_.Reset();
}

void JobRecord::AddTo(const Membership& membership, const std::vector<Peer*>& by_rank,
                      const RoundEngine* engine, Instant now, ServerStats* stats) const {
  stats->jobs_finished = jobs_finished_;
  stats->jobs_aborted = jobs_aborted_;
  stats->joins_refused = joins_refused_;
  stats->longest_event = longest_event_;
  stats->traffic = traffic_.Total(by_rank);
  if (engine != nullptr) AddRounds(*engine, *rounds_, stats);
  AddMembers(membership, by_rank, traffic_, engine, now, stats);
}

}  // namespace longhaul::server
