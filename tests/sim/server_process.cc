#include <algorithm>
#include <sstream>

#include "base/work_budget.h"
#include "codec/chunk/chunk.h"
#include "tests/sim/processes.h"
#include "tests/sim/simulated_keys.h"

namespace longhaul::sim {
namespace {

server::ServerCoreOptions ServerOptions(const RunPlan& plan, uint32_t index, server::ServerEvents* events) {
  const JobPlan& job = plan.jobs[index];
  server::ServerCoreOptions options;
  options.events = events;
  server::ServerSettings& s = options.settings;
  static_cast<JobSpec&>(s) = job;
  s.job = "job" + std::to_string(index);
  s.world_size = job.workers;
  s.min_workers = job.min_workers;
  s.start_workers = job.start_workers;
  s.idle_timeout = plan.idle_timeout;
  s.max_datagram = plan.datagram;
  options.connection.allow_migration = true;  // of what is not encrypted as well
  if (plan.key_update_packets > 0) {
    options.connection.key_update = {.packets = plan.key_update_packets, .spacing = Duration(0)};
  }
  return options;
}

}  // namespace

ServerProcess::ServerProcess(const Environment& environment, uint32_t job, const Address& address,
                             wan::VirtualNetwork::SiteId site, JobLedger* ledger)
    : environment_(environment), job_(job), address_(address), site_(site), ledger_(ledger) {
  addresses_.resize(environment_.plan->jobs[job].workers);
  incarnations_.resize(addresses_.size());
  if (environment_.plan->sabotage == Sabotage::kForgetfulDisk) disk_.Forget();
  Boot();
}

void ServerProcess::Boot() {
  const RunPlan& plan = *environment_.plan;
  Random chance = Random(plan.seed).Fork(10 + job_ + 100 * boots_++);
  host_.reset();
  core_.reset();
  server::ServerCoreOptions options = ServerOptions(plan, job_, this);
  security_ = ServerSecurity(plan.protection, job_);
  options.security = security_.get();
  if (plan.jobs[job_].durable) {
    options.settings.first_job = chance.Next();
    const server::store::RedoLog::About about{.job = options.settings.job,
                                              .world_size = options.settings.world_size};
    log_ = std::make_unique<SimulatedLog>(environment_.network, &disk_, about, chance.Fork(1), [this] {
      core_->OnLogged(environment_.network->now());
      host_->Pump();
    });
    if (const auto resumed = log_->resumed()) options.settings.first_job = resumed->number;
    options.images = log_.get();
  }
  core_ = std::make_unique<server::ServerCore>(options, environment_.coder, chance);
  tap_ = std::make_unique<TappedCore>(core_.get());
  host_ = std::make_unique<SimulatedHost>(environment_.network, address_, site_, tap_.get());
  down_ = false;
}

void ServerProcess::Kill() {
  if (killed_) return;
  environment_.Trace("server " + std::to_string(job_) + " is killed");
  killed_ = true;
  host_->Kill();
  if (log_ != nullptr) log_->Die();
  ledger_->server_killed = true;
  ledger_->first_death = std::min(ledger_->first_death, environment_.network->now());
}

void ServerProcess::Restart(Duration after) {
  if (over() || down_) return;
  environment_.Trace("server " + std::to_string(job_) + " is killed, to start again");
  down_ = true;
  host_->Kill();
  log_->Die();
  ++ledger_->server_restarts;
  environment_.network->Schedule(environment_.network->now() + after, [this] {
    environment_.Trace("server " + std::to_string(job_) + " starts again");
    Boot();
  });
}

void ServerProcess::Pause(Duration time, bool timers_first) {
  if (killed_ || down_) return;
  environment_.Trace("server " + std::to_string(job_) + " stands still");
  host_->Pause(time, timers_first);
}

void ServerProcess::Shutdown() {
  if (over()) return;
  environment_.Trace("server " + std::to_string(job_) + " is asked to end");
  const Instant now = environment_.network->now();
  shutdown_ = now;
  ledger_->server_shut_down = true;
  ledger_->server_ended = now;
  ledger_->first_death = std::min(ledger_->first_death, now);
  core_->Shutdown(now, Status(StatusCode::kUnavailable, "the operator ended the server"));
  host_->Pump();
}

uint32_t ServerProcess::HeardSince(uint32_t rank, Instant since) const {
  uint32_t heard = 0;
  for (const Address& address : addresses_[rank]) heard += tap_->HeardSince(address, since);
  return heard;
}

// Only a successor takes a rank from a process that is there, and nobody comes back behind it.
void ServerProcess::CheckTakeover(uint32_t rank, const server::Member& member, bool replaces) {
  if (ledger_->jobs_finished + ledger_->jobs_aborted > 0) return;  // a job of its own
  std::optional<uint64_t>& newest = incarnations_[rank];
  const bool older = newest && member.incarnation < *newest;
  // The same command line again: its predecessor was asked for a second, and did not answer.
  const bool durable = environment_.plan->jobs[job_].durable;  // then it is the same process: it has a name
  const bool again = newest && replaces && member.incarnation == *newest && !durable;
  const Instant asked = environment_.network->now() - std::chrono::milliseconds(800);
  const bool twin = again && HeardSince(rank, asked) > 2;
  ledger_->taken_over = ledger_->taken_over || again;
  if (older || twin) {
    ledger_->disagreements.push_back("the server let incarnation " + std::to_string(member.incarnation) +
                                     " of rank " + std::to_string(rank) + " in, while incarnation " +
                                     std::to_string(*newest) + (twin ? " was there" : " had been there"));
  }
  newest = member.incarnation;
}

std::string ServerProcess::Violation() const {
  if (killed_ || down_) return "";
  const std::string name = "server " + std::to_string(job_);
  if (!host_->violation().empty()) return name + ": " + host_->violation();
  if (!core_->Drained() && core_->NextTimeout().IsInfinite()) return name + " waits without an armed timer";
  const server::ServerStats stats = core_->stats();
  // Then a job has no members any more, and none is gathered; its process can end.
  if (!shutdown_.IsInfinite()) {
    const std::string since = " though it was asked to end";
    if (stats.joined > 0) return name + " has " + std::to_string(stats.joined) + " members" + since;
    const Instant drained = shutdown_ + environment_.plan->idle_timeout + std::chrono::seconds(5);
    if (!host_->paused() && environment_.network->now() > drained + host_->pauses() && !core_->Drained())
      return name + " does not end" + since;
  }
  if (stats.members.size() > addresses_.size()) return name + " has more members than ranks";
  // A slice, and the chunks of a datagram, which FEC may make 24.
  const auto bound =
      WorkBudget::kSliceElements + 40 * static_cast<uint64_t>(environment_.plan->datagram.value());
  if (stats.longest_event_elements > bound) {
    return name + ": one event worked on " + std::to_string(stats.longest_event_elements) + " elements";
  }
  return "";
}

void ServerProcess::OnJoin(uint32_t rank, const server::Member& member, bool replaces) {
  CheckTakeover(rank, member, replaces);
  addresses_[rank] = {member.peer};
  environment_.Trace("server " + std::to_string(job_) + ": rank " + std::to_string(rank) + " incarnation " +
                     std::to_string(member.incarnation) +
                     (replaces ? " replaces its predecessor" : " joins"));
}

void ServerProcess::OnRefused(const Address& peer, const std::string&, const Status& why) {
  environment_.Trace("server " + std::to_string(job_) + " refuses " + peer.ToString() + ": " +
                     why.ToString());
}

void ServerProcess::OnStart(uint32_t workers, uint32_t symbol_bytes) {
  environment_.Trace("server " + std::to_string(job_) + ": start with " + std::to_string(workers) +
                     " workers, chunks of " + std::to_string(symbol_bytes) + " bytes");
  // A second job on this server finds the first one's tensors gone; the ledger is about the first.
  if (ledger_->jobs_finished + ledger_->jobs_aborted > 0) return;
  ledger_->chunk_elements = codec::ChunkElementsFor(static_cast<uint16_t>(symbol_bytes));
  ledger_->fewest_started = std::min(ledger_->fewest_started, workers);
}

void ServerProcess::OnRound(const server::JobRound& round, const server::ServerStats&) {
  if (!environment_.trace) return;
  std::ostringstream out;
  out << "server " << job_ << ": round " << round.round << " took "
      << std::chrono::duration<double, std::milli>(round.duration).count() << " ms, " << round.contributors
      << " contributors, last rank " << round.last_rank << ", repaired " << round.repaired_chunks << ", lost "
      << round.lost_chunks << ", filled " << round.filled_chunks;
  environment_.Trace(out.str());
}

void ServerProcess::OnLeave(uint32_t rank, const std::string& who, const Status& why) {
  environment_.Trace("server " + std::to_string(job_) + ": " + who + " is gone, " + why.ToString());
  environment_.network->Note(rank << 8 | static_cast<uint64_t>(why.code()));
  if (why.ok()) return;
  const Instant now = environment_.network->now();
  ledger_->first_death = std::min(ledger_->first_death, now);
  ledger_->losses.push_back(
      {now, rank, why, HeardSince(rank, now - environment_.plan->idle_timeout + kTrail)});
}

void ServerProcess::OnJobOver(const Status& outcome, const server::ServerStats& stats) {
  environment_.Trace("server " + std::to_string(job_) + ": the job is over, " + outcome.ToString());
  if (ledger_->jobs_finished + ledger_->jobs_aborted == 0) {
    ledger_->job_outcome = outcome.ToString();
    ledger_->duplicate_contributions = stats.duplicate_contributions;
    ledger_->late_windows = stats.late_windows_taken;
    ledger_->chunks_by_rank.assign(environment_.plan->jobs[job_].workers, 0);
    for (const server::MemberStats& member : stats.members) {
      ledger_->chunks_by_rank[member.rank] = member.chunks;
      ledger_->left_out += member.excluded;
    }
  }
  ++(outcome.ok() ? ledger_->jobs_finished : ledger_->jobs_aborted);
}

}  // namespace longhaul::sim
