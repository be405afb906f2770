#include "tests/sim/checkers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "codec/chunk/chunk.h"
#include "codec/policy/state_hash.h"
#include "tests/sim/faults.h"
#include "tests/sim/liveness.h"
#include "tests/sim/round_model.h"

namespace longhaul::sim {
namespace {

// Datagrams heard within an idle time-out that still count as silence: damaged ones are no sign of life, and
// under attack neither are those that only look as if they came from the peer, or are answers to such.
bool IsSilence(const RunPlan& plan, uint32_t heard_lately) {
  const bool attacked = std::ranges::count(plan.faults, FaultKind::kRandomDatagrams, &Fault::kind) > 0;
  return attacked || heard_lately <= 2;
}
bool IsLossy(const RunPlan& plan, uint32_t rank);

// What comes from a new address is no sign of life until the address has answered a challenge. No challenge
// gets there through an outage of the way down, and none is answered by a worker that has given up a server
// that stood still; on a lossy path all of them may be lost.
bool MovedBehindAnOutage(const RunPlan& plan, uint32_t job, uint32_t rank) {
  const auto hits = [&](FaultKind kind) {
    return std::ranges::any_of(plan.faults, [&](const Fault& fault) {
      return fault.kind == kind && fault.rank == rank && (fault.job == job || HitsSite(kind)) &&
             (kind == FaultKind::kAddressChange || MayKill(fault, plan.idle_timeout));
    });
  };
  const bool stood_still = std::ranges::any_of(plan.faults, [&](const Fault& fault) {
    return fault.kind == FaultKind::kServerPause && MayKill(fault, plan.idle_timeout);
  });
  return hits(FaultKind::kAddressChange) &&
         (stood_still || IsLossy(plan, rank) || hits(FaultKind::kDownlinkOutage) ||
          hits(FaultKind::kFullOutage));
}
// What the end of a run may take beyond idle time-outs: retransmissions, goodbyes, linger.
constexpr Duration kSlack = std::chrono::seconds(5);

std::string NameOf(const ProcessRecord& process) {
  return "rank " + std::to_string(process.rank) + " incarnation " + std::to_string(process.incarnation);
}

bool Mentions(const Status& status, const std::string& word) {
  return status.message().find(word) != std::string::npos;
}

const ProcessRecord* Find(const JobLedger& ledger, uint32_t rank, uint64_t incarnation) {
  for (const ProcessRecord& process : ledger.processes) {
    const bool same = process.rank == rank && process.incarnation == incarnation;
    if (same && !process.meant_to_be_refused) return &process;
  }
  return nullptr;
}

bool HasSuccessor(const ProcessRecord& process, const JobLedger& ledger) {
  return std::ranges::any_of(ledger.processes, [&](const ProcessRecord& other) {
    return other.rank == process.rank && other.incarnation > process.incarnation;
  });
}

// The server had done with it: it was replaced, or missed, or the job was over.
bool WasGone(const ProcessRecord& process, const JobLedger& ledger) {
  const auto missed = [&](const LossRecord& loss) {
    return loss.rank == process.rank && loss.when <= process.ended;
  };
  return HasSuccessor(process, ledger) || std::ranges::any_of(ledger.losses, missed) ||
         ledger.jobs_aborted > 0;
}

// The rank's links with the worst loss that they have in this run.
std::array<wan::LinkOptions, 2> WorstLinks(const RunPlan& plan, uint32_t rank) {
  std::array<wan::LinkOptions, 2> links = {plan.up[rank], plan.down[rank]};
  for (const Fault& fault : plan.faults) {
    if (fault.kind != FaultKind::kWeather || fault.rank != rank) continue;
    const double loss = fault.weather.loss.value_or(0);
    if (fault.weather.up) links[0].loss = std::max(links[0].loss, loss);
    if (fault.weather.down) links[1].loss = std::max(links[1].loss, loss);
  }
  return links;
}

bool IsLossy(const RunPlan& plan, uint32_t rank) {
  return std::ranges::any_of(WorstLinks(plan, rank), [](const wan::LinkOptions& link) {
    return link.loss >= 0.1 || link.loss_burst > 0;
  });
}

// Maybe for most of the time in which a worker has to join: an outage may end shortly before that does (seeds
// 794955173697, 881991844073), and so may a pause of the server's (435059647382).
bool IsCut(const RunPlan& plan, uint32_t rank) {
  return std::ranges::any_of(plan.faults, [rank](const Fault& fault) {
    const bool outage = HitsSite(fault.kind) && fault.kind != FaultKind::kWeather;
    const bool server = fault.kind == FaultKind::kServerPause || fault.kind == FaultKind::kServerRestart;
    return server || (fault.rank == rank && (outage || IsPause(fault.kind)));
  });
}

// For how long processes stand still, at most.
Duration Pauses(const RunPlan& plan) {
  Duration sum{0};
  for (const Fault& fault : plan.faults) sum += IsPause(fault.kind) ? fault.duration : Duration(0);
  return sum;
}

// Datagrams that a worker may hear before it gives up joining. Of each exchange the ACCEPT and one
// acknowledgement come without trying again. Every further one means a try in which something came, but not
// what was needed: it was lost on the way there or back, with probability l (behind a lost packet in a burst
// of mean B: 1 - 1/B). So k of them have the probability l^(k - 2), and what is rarer than one in ten
// million, with half a million workers in 100,000 seeds, is not put down to the network.
// A probe time-out is two datagrams, and a server asks a worker that it has accepted for a sign of life four
// times within an idle time-out; where the INITs and Joins of all that time may have been lost, these come as
// well (seed 4017399: 14 were heard, three Joins were lost of 12 % each).
uint32_t HeardBeforeGivingUp(const RunPlan& plan, uint32_t rank) {
  double lost = 1;
  double burst = 0;
  for (const wan::LinkOptions& link : WorstLinks(plan, rank)) {
    lost *= (1 - link.loss) * (1 - link.corrupt);
    if (link.loss_burst > 1) burst = std::max(burst, 1 - 1 / link.loss_burst);
  }
  lost = std::max(1 - lost, burst);
  // The search for the path's MTU is an exchange for each of its probes, and may take half of the time to
  // join.
  const bool searches = std::ranges::any_of(
      plan.faults, [&](const Fault& fault) { return fault.rank == rank && fault.weather.mtu.has_value(); });
  if (searches) return UINT32_MAX;
  if (lost <= 0) return 2;
  constexpr uint32_t kJoinsLost = 3;  // or INITs, by their time-outs
  const auto losses = static_cast<uint32_t>(std::log(1e-7) / std::log(std::min(lost, 0.9)));
  return losses < kJoinsLost ? 2 + losses : 2 + 4 + (losses - kJoinsLost) * 2;
}

// Empty when this end of a process can be understood from what has happened.
std::string WhyWrong(const RunPlan& plan, const ProcessRecord& process, const JobLedger& ledger) {
  const Status& why = process.failure;
  const std::string said = NameOf(process) + " failed with " + why.ToString();
  switch (why.code()) {
    case StatusCode::kPeerDead:
      if (IsSilence(plan, process.heard_lately)) return "";
      return said + ", but it had heard the server within the idle time-out";
    case StatusCode::kUnavailable:
      // Also when the server has answered and died before it let the worker in.
      if (IsSilence(plan, process.heard_lately) || ledger.server_killed || ledger.server_shut_down) return "";
      // A server that had it replaced or missed it knows nothing of its connection any more, and says so.
      if (Mentions(why, "has forgotten this connection") && WasGone(process, ledger)) return "";
      // An ACCEPT and acknowledgements, while every copy of the Welcome was lost.
      if (process.heard_lately <= HeardBeforeGivingUp(plan, process.rank) || IsCut(plan, process.rank))
        return "";
      return said + ", but the server had answered";
    case StatusCode::kDeadlineExceeded:
      // The server waits five seconds for a Join, every copy of which was lost.
      if ((IsLossy(plan, process.rank) || IsCut(plan, process.rank)) && Mentions(why, "no Join")) return "";
      return said + ", which nobody has asked for";
    case StatusCode::kSettingsMismatch:
      // The only one that a network can bring about: when many INITs are lost a worker falls back to small
      // datagrams, which a job that runs with large ones cannot take.
      if (process.meant_to_be_refused) return "";
      if (process.incarnation > 0 && (IsLossy(plan, process.rank) || plan.faults.size() > 1)) return "";
      return said + ", which nobody has asked for";
    case StatusCode::kAlreadyExists:
      if (process.meant_to_be_refused || HasSuccessor(process, ledger)) return "";
      return said + ", but nobody had its place";
    case StatusCode::kAborted:
      if (ledger.server_shut_down && Mentions(why, "the operator ended the server")) return "";
      if (Mentions(why, "replaced by incarnation")) {
        return HasSuccessor(process, ledger) ? "" : said + ", but it has no successor";
      }
      if (ledger.first_death > process.ended + plan.idle_timeout) return said + ", but nobody was dead";
      return Mentions(why, "worker") ? "" : said + ", which does not say who is to blame";
    default:
      return said + ", which fits nothing that has happened";
  }
}

// Silence is noticed after one idle time-out; what the server has decided about the job arrives within
// another.
void CheckInTime(const RunPlan& plan, const ProcessRecord& process, const JobLedger& ledger,
                 std::vector<std::string>* violations) {
  const bool silence =
      process.failure.code() == StatusCode::kPeerDead || process.failure.code() == StatusCode::kUnavailable;
  Instant cause = process.last_heard;
  for (const LossRecord& loss : ledger.losses) {
    if (!silence && loss.when <= process.ended) cause = loss.when;
  }
  if (ledger.server_shut_down && Mentions(process.failure, "the operator ended the server")) {
    cause = ledger.server_ended;
  }
  cause = std::max(cause, process.started);
  Duration allowed = plan.idle_timeout + kSlack + Pauses(plan);
  // What a server says that it has tried to come back to: on a lossy path most tries may fail, and it tries
  // for as long as it waits (seed 2000313).
  if (Mentions(process.failure, "which is back") && IsLossy(plan, process.rank)) allowed += kReconnectTimeout;
  if (process.ended - cause <= allowed) return;
  violations->push_back(NameOf(process) + " ended " +
                        std::to_string((process.ended - cause).count() / 1'000'000) +
                        " ms after what has ended it: " + process.failure.ToString());
}

void CheckProcess(const RunPlan& plan, const ProcessRecord& process, const JobLedger& ledger,
                  std::vector<std::string>* violations) {
  if (process.killed || process.finished || process.stranded) return;
  if (process.failure.ok()) {
    violations->push_back(NameOf(process) + " left before it was through");
    return;
  }
  if (const std::string wrong = WhyWrong(plan, process, ledger); !wrong.empty()) {
    violations->push_back(wrong);
  }
  CheckInTime(plan, process, ledger, violations);
}

}  // namespace

void CheckEnds(const JobLedger& ledger, std::vector<std::string>* violations) {
  const auto check = [&](const std::string& what, uint32_t rank, uint64_t incarnation, int ends,
                         const Status& outcome) {
    const ProcessRecord* process = Find(ledger, rank, incarnation);
    const std::string name =
        what + " of rank " + std::to_string(rank) + " incarnation " + std::to_string(incarnation);
    const bool killed = process != nullptr && process->killed;
    if (ends > 1) violations->push_back(name + " ended " + std::to_string(ends) + " times");
    if (ends == 0 && !killed) violations->push_back(name + " never ended");
    if (ends == 0 || killed || outcome.ok() || process == nullptr) return;
    const bool given_up = process->stranded && outcome.code() == StatusCode::kCancelled;
    if (!given_up && outcome.code() != process->failure.code()) {
      violations->push_back(name + " ended with " + outcome.ToString() + ", but its process with " +
                            process->failure.ToString());
    }
  };
  for (const PushRecord& push : ledger.pushes) {
    if (push.result_gone && push.ends == 1 && ledger.server_restarts > 0) continue;
    check("push " + std::to_string(push.id.sequence) + " of tensor " + std::to_string(push.id.tensor),
          push.id.rank, push.id.incarnation, push.ends, push.outcome);
  }
  for (const OperationRecord& operation : ledger.operations) {
    check(operation.what, operation.rank, operation.incarnation, operation.ends, operation.outcome);
  }
}

void CheckOutcomes(const RunPlan& plan, uint32_t job, const JobLedger& ledger,
                   std::vector<std::string>* violations, uint64_t* weather_deaths) {
  for (const ProcessRecord& process : ledger.processes) CheckProcess(plan, process, ledger, violations);
  for (const LossRecord& loss : ledger.losses) {
    if (loss.why.code() == StatusCode::kPeerDead && !IsSilence(plan, loss.heard_lately) &&
        !MovedBehindAnOutage(plan, job, loss.rank)) {
      violations->push_back("the server took rank " + std::to_string(loss.rank) +
                            " for dead, but had heard it within the idle time-out");
    }
  }
  const bool deadly = std::ranges::any_of(plan.faults, [&](const Fault& fault) {
    return (fault.job == job || HitsSite(fault.kind)) && MayKill(fault, plan.idle_timeout);
  });
  // A lossy link may be silent for an idle time-out all by itself; what was heard proves it (CheckProcess).
  const auto unlucky = [&](const ProcessRecord& process) {
    const StatusCode code = process.failure.code();
    const bool silent = code == StatusCode::kPeerDead || code == StatusCode::kUnavailable ||
                        code == StatusCode::kDeadlineExceeded;
    // A handshake that a server has begun is nothing to the next one: its worker has until its time to join.
    const bool began = ledger.server_restarts > 0 && (Mentions(process.failure, "no answer from server") ||
                                                      Mentions(process.failure, "let this worker join"));
    // A server that was started again goes on, and to the end, without one that is cut off.
    const bool without = ledger.server_restarts > 0 && ledger.fewest_started < plan.jobs[job].workers &&
                         ledger.jobs_finished > 0 &&
                         Mentions(process.failure, "which is back, has another job");
    return without || (silent && (IsLossy(plan, process.rank) || began));
  };
  const auto unheard = [&](const LossRecord& loss) {
    return loss.why.code() == StatusCode::kPeerDead && IsLossy(plan, loss.rank);
  };
  const bool weather =
      std::ranges::any_of(ledger.processes, unlucky) || std::ranges::any_of(ledger.losses, unheard);
  if (deadly) return;
  if (weather) {
    ++*weather_deaths;
    return;
  }
  for (const ProcessRecord& process : ledger.processes) {
    if (!process.finished && !process.meant_to_be_refused) {
      violations->push_back(NameOf(process) + " did not finish, though nothing deadly has happened: " +
                            process.failure.ToString());
    }
  }
  // A worker waits two seconds for the server's goodbye, then it is gone; when the network has swallowed all
  // it said until then, the server takes it for dead.
  const bool goodbye_lost = std::ranges::all_of(ledger.losses, [&](const LossRecord& loss) {
    return IsLossy(plan, loss.rank) || !plan.faults.empty();
  });
  if (ledger.jobs_finished != 1 && !(goodbye_lost && ledger.jobs_aborted == 1)) {
    violations->push_back("the job should have finished, but: " + ledger.job_outcome);
  }
  // What a server did not say before it died is sent again.
  if (ledger.duplicate_contributions != 0 && ledger.server_restarts == 0) {
    violations->push_back("the server had to drop duplicate contributions in a run without deaths");
  }
}

// A barrier is left when all have come to it, as long as none dies or comes after the start.
void CheckBarriers(const JobPlan& job, const JobLedger& ledger, std::vector<std::string>* violations) {
  if (job.start_workers != 0 || !ledger.losses.empty() || ledger.processes.size() > job.workers) return;
  struct Meeting {
    uint32_t came = 0;
    Instant last_came;
    Instant first_left = Instant::Infinite();
  };
  std::map<std::string, Meeting> meetings;
  for (const OperationRecord& operation : ledger.operations) {
    if (!operation.what.starts_with("barrier")) continue;
    Meeting& meeting = meetings[operation.what];
    ++meeting.came;
    meeting.last_came = std::max(meeting.last_came, operation.issued);
    if (operation.outcome.ok() && operation.ends > 0)
      meeting.first_left = std::min(meeting.first_left, operation.ended);
  }
  for (const auto& [what, meeting] : meetings) {
    const bool early = meeting.came < job.workers || meeting.first_left < meeting.last_came;
    if (!meeting.first_left.IsInfinite() && early) {
      violations->push_back(what + " was left before all had come to it");
    }
  }
}

// On a sound network a worker that leaves hears the server's goodbye, and waits for nothing else.
void CheckGoodbye(const RunPlan& plan, const ProcessRecord& process, std::vector<std::string>* violations) {
  // Round trips and queues, and the probes of a connection whose rate is low: less than the 2 s after which a
  // worker gives up waiting.
  constexpr Duration kGoodbye = std::chrono::milliseconds(1900);
  const auto slow = [](const wan::LinkOptions& link) { return link.delay > std::chrono::milliseconds(100); };
  if (std::ranges::any_of(WorstLinks(plan, process.rank), slow) || plan.Has(FaultKind::kWeather)) return;
  if (!process.finished || process.ended - process.all_done <= kGoodbye) return;
  violations->push_back(NameOf(process) + " waited " +
                        std::to_string(InSeconds(process.ended - process.all_done)) +
                        " s for the server's goodbye on a sound network");
}

// Behind the gate the network is sound: what the faults have done to the connections must not slow the rounds
// down.
void CheckLiveness(const RunPlan& plan, uint32_t job, const JobLedger& ledger, RunResult* result,
                   std::vector<std::string>* violations) {
  const auto died = [&](const auto& when) { return when >= ledger.healed; };
  if (ledger.healed.IsInfinite() || std::ranges::any_of(ledger.losses, died, &LossRecord::when)) return;
  const Duration bound = LivenessBound(plan, job, ledger.lossless);
  for (const ProcessRecord& process : ledger.processes) {
    if (!process.failure.ok() && died(process.ended)) return;
  }
  for (const ProcessRecord& process : ledger.processes) {
    if (process.all_done.IsInfinite()) continue;
    CheckGoodbye(plan, process, violations);
    const Duration took = process.all_done - ledger.healed;
    ++result->quick_processes;
    const double beyond = InSeconds(took) - 3 * InSeconds(ledger.lossless);
    result->slowest_recovery = std::max(result->slowest_recovery, beyond);
    if (took <= bound) continue;
    violations->push_back(NameOf(process) + " took " + std::to_string(InSeconds(took)) + " s for the last " +
                          std::to_string(plan.jobs[job].rounds - plan.jobs[job].gate) +
                          " rounds on a sound network, at most " + std::to_string(InSeconds(bound)) +
                          " s are allowed and " + std::to_string(InSeconds(ledger.lossless)) +
                          " s are needed");
  }
}

// Chunk by chunk a replica is the version's, or the one's before; and not behind twice running, nor in a hash
// round.
void CheckReplicas(const JobPlan& job, const JobLedger& ledger, RunResult* result,
                   std::vector<std::string>* violations) {
  const auto version = [&](uint32_t tensor, uint64_t number) {
    const auto found = ledger.versions.find({tensor, number});
    return found == ledger.versions.end() ? nullptr : &found->second.values;
  };
  struct Behind {
    uint64_t version = 0;
    std::vector<bool> chunks;
  };
  std::map<std::tuple<uint32_t, uint32_t, uint64_t>, Behind> behind;
  for (const ReplicaRecord& replica : ledger.replicas) {
    const std::vector<float>* now = version(replica.tensor, replica.version);
    const std::vector<float>* before = version(replica.tensor, replica.version - 1);
    if (now == nullptr || before == nullptr) continue;  // no worker has pulled it: one died in between
    const std::string name = "tensor " + std::to_string(replica.tensor) + " version " +
                             std::to_string(replica.version) + ", the replica of rank " +
                             std::to_string(replica.rank) + ": chunk ";
    const codec::ChunkGeometry chunks{replica.values.size(), ledger.chunk_elements};
    Behind& last = behind[{replica.tensor, replica.rank, replica.incarnation}];
    std::vector<bool> is_behind(chunks.chunks(), false);
    for (uint32_t chunk = 0; chunk < chunks.chunks(); ++chunk) {
      const auto is = [&](const std::vector<float>& other) {
        return std::ranges::equal(chunks.Elements(std::span(replica.values), chunk),
                                  chunks.Elements(std::span(other), chunk));
      };
      if (is(*now)) continue;
      is_behind[chunk] = true;
      ++result->chunks_behind;
      if (!is(*before))
        violations->push_back(name + std::to_string(chunk) +
                              " is neither this version's nor the one's before");
      const bool twice = last.version + 1 == replica.version && !last.chunks.empty() && last.chunks[chunk];
      if (twice)
        violations->push_back(name + std::to_string(chunk) + " is behind for the second time running");
      if (codec::IsHashRound(replica.version - 1, job.hash_rounds)) {
        violations->push_back(name + std::to_string(chunk) + " is behind in a hash round");
      }
    }
    last = {replica.version, std::move(is_behind)};
    ++result->replicas_checked;
  }
}

// SSP: a push is acknowledged when its worker has made at most so many more than the slowest. One that has
// counted was issued before. A worker that is held up for long holds the others no longer.
void CheckStaleness(const RunPlan& plan, uint32_t job, const JobLedger& ledger,
                    std::vector<std::string>* violations) {
  const JobPlan& of = plan.jobs[job];
  const bool held_up = std::ranges::any_of(plan.faults, [](const Fault& fault) {
    return fault.kind != FaultKind::kWeather && fault.kind != FaultKind::kServerRestart;
  });
  if (of.staleness < 1 || held_up || !ledger.losses.empty() || ledger.processes.size() > of.workers) return;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<const PushRecord*>> pushes;  // by tensor and rank
  for (const PushRecord& push : ledger.pushes) pushes[{push.id.tensor, push.id.rank}].push_back(&push);
  for (const auto& [where, own] : pushes) {
    for (size_t made = 1; made <= own.size(); ++made) {
      const PushRecord& push = *own[made - 1];
      if (!push.completed() || !push.outcome.ok()) break;
      for (uint32_t rank = 0; rank < of.workers; ++rank) {
        const auto others = pushes.find({where.first, rank});
        const auto issued =
            others == pushes.end() ? 0 : std::ranges::count_if(others->second, [&](const PushRecord* p) {
              return p->issued <= push.ended;
            });
        if (std::cmp_less_equal(made, issued + of.staleness)) continue;
        violations->push_back("rank " + std::to_string(where.second) + " was let go after " +
                              std::to_string(made) + " pushes of tensor " + std::to_string(where.first) +
                              ", while rank " + std::to_string(rank) + " had made " + std::to_string(issued) +
                              ", with a staleness of " + std::to_string(of.staleness));
        return;
      }
    }
  }
}

void CheckJob(const RunPlan& plan, uint32_t job, const JobLedger& ledger, RunResult* result) {
  std::vector<std::string> violations = ledger.disagreements;
  if (ledger.taken_over && violations.empty()) return;
  CheckEnds(ledger, &violations);
  CheckOutcomes(plan, job, ledger, &violations, &result->weather_deaths);
  CheckReplicas(plan.jobs[job], ledger, result, &violations);
  CheckBarriers(plan.jobs[job], ledger, &violations);
  CheckStaleness(plan, job, ledger, &violations);
  CheckLiveness(plan, job, ledger, result, &violations);
  result->left_out += ledger.left_out;
  result->late_windows += ledger.late_windows;
  std::vector<uint64_t> contributions(plan.jobs[job].workers, 0);
  bool complete = true;
  bool ambiguous = false;
  bool explained = true;
  for (uint32_t tensor = 0; tensor < plan.jobs[job].tensors.size(); ++tensor) {
    const ModelOutcome model = CheckTensor(plan.jobs[job], job, tensor, ledger);
    violations.insert(violations.end(), model.violations.begin(), model.violations.end());
    result->rounds_checked += model.rounds_checked;
    result->chunks_lost += model.chunks_lost;
    result->chunks_repaid += model.chunks_repaid;
    for (size_t rank = 0; rank < contributions.size(); ++rank)
      contributions[rank] += model.contributions[rank];
    // A worker that was left out of rounds makes up for it when the others are through.
    const bool all = plan.jobs[job].LeavesOut() ? model.rounds_checked >= plan.jobs[job].rounds
                                                : model.rounds_checked == plan.jobs[job].rounds;
    complete = complete && model.complete && all;
    // A pull brings what the server has by then. When rounds do not wait for every worker, no pull need come
    // between two.
    const JobPlan& of = plan.jobs[job];
    const bool skipped =
        model.gap && of.LeavesOut() && (of.downlink == Downlink::kLossy || of.tensors[tensor].pull_apart);
    result->unseen_versions += skipped ? 1 : 0;
    explained = explained && ((model.complete && all) || skipped);
    ambiguous = ambiguous || model.ambiguous;
  }
  // The server's own count agrees with what the results show.
  const bool everything_seen = complete && !ambiguous && ledger.jobs_finished == 1 &&
                               ledger.jobs_aborted == 0 && ledger.server_restarts == 0;
  if (everything_seen && violations.empty() && ledger.chunks_by_rank != contributions) {
    violations.push_back("the server counts other contributions than its results contain");
  }
  const bool must_finish = plan.faults.empty() && result->weather_deaths == 0;
  if (must_finish && !explained) violations.push_back("not every round could be checked");
  for (std::string& violation : violations) {
    result->violations.push_back("job " + std::to_string(job) + ": " + std::move(violation));
  }
}

}  // namespace longhaul::sim
