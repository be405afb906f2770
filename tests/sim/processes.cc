#include "tests/sim/processes.h"

#include <algorithm>
#include <bit>
#include <sstream>
#include <utility>

#include "codec/chunk/chunk.h"
#include "tests/sim/simulated_keys.h"

namespace longhaul::sim {
namespace {

using State = worker::WorkerCore::State;

worker::WorkerCoreOptions WorkerOptions(const RunPlan& plan, const WorkerProcess::Setup& setup) {
  const JobPlan& job = plan.jobs[setup.job];
  worker::WorkerCoreOptions options{.job = "job" + std::to_string(setup.job),
                                    .site = "site" + std::to_string(setup.rank),
                                    .rank = setup.rank,
                                    .world_size = job.workers,
                                    .incarnation = setup.incarnation,
                                    .weight = job.weights[setup.rank],
                                    .connect_timeout = plan.idle_timeout};
  if (job.durable) options.reconnect_timeout = kReconnectTimeout;
  options.connection.max_datagram = plan.datagram;
  options.connection.idle_timeout = plan.idle_timeout;
  if (plan.key_update_packets > 0) {
    options.connection.key_update = {.packets = plan.key_update_packets, .spacing = Duration(0)};
  }
  return options;
}

uint64_t StreamOf(const WorkerProcess::Setup& setup) {
  return 1000 + setup.job * 1000 + setup.rank * 10 + setup.incarnation + (setup.meant_to_be_refused ? 5 : 0);
}

std::string Seconds(Instant t) {
  std::ostringstream out;
  out.precision(4);
  out << std::fixed << static_cast<double>(t.nanoseconds()) / 1e9;
  return out.str();
}

}  // namespace

void Environment::Trace(const std::string& line) const {
  if (trace) trace("[" + Seconds(network->now()) + " s] " + line);
}

// --- WorkerProcess: life ---

WorkerProcess::WorkerProcess(const Environment& environment, const Setup& setup, JobLedger* ledger,
                             std::function<void(uint32_t rank)> on_push)
    : environment_(environment),
      setup_(setup),
      ledger_(ledger),
      record_(ledger->processes.size()),
      on_push_(std::move(on_push)),
      chance_(Random(environment.plan->seed).Fork(StreamOf(setup))) {
  const RunPlan& plan = *environment_.plan;
  tensors_.resize(job().tensors.size());
  worker::WorkerCoreOptions options = WorkerOptions(plan, setup);
  if (job().durable) options.session = chance_.Next();
  security_ = WorkerSecurity(plan.protection, setup.job, setup.rank);
  options.security = security_.get();
  core_ = std::make_unique<worker::WorkerCore>(options, environment_.coder, chance_.Fork(1));
  core_->SetStateListener([this](State state) { OnState(state); });
  tap_ = std::make_unique<TappedCore>(core_.get());
  host_ = std::make_unique<SimulatedHost>(environment_.network, setup.address, setup.site, tap_.get());
  ProcessRecord record;
  record.rank = setup.rank;
  record.incarnation = setup.incarnation;
  record.started = environment_.network->now();
  record.meant_to_be_refused = setup.meant_to_be_refused;
  ledger_->processes.push_back(record);
}

WorkerProcess::~WorkerProcess() { *alive_ = false; }

std::string WorkerProcess::Name() const {
  return "job " + std::to_string(setup_.job) + " rank " + std::to_string(setup_.rank) + " incarnation " +
         std::to_string(setup_.incarnation);
}

void WorkerProcess::Start() {
  environment_.Trace(Name() + " starts");
  core_->Start(environment_.network->now(), setup_.server);
  host_->Pump();
}

void WorkerProcess::Kill() {
  if (over()) return;
  environment_.Trace(Name() + " is killed");
  killed_ = true;
  *alive_ = false;
  host_->Kill();
  ProcessRecord& record = ledger_->processes[record_];
  record.killed = true;
  record.ended = environment_.network->now();
}

void WorkerProcess::LeaveStranded() {
  if (over() || stranded_) return;
  environment_.Trace(Name() + " finds nobody to train with and gives up");
  stranded_ = true;
  core_->Leave();
  host_->Pump();
}

void WorkerProcess::Pause(Duration time, bool timers_first) {
  if (over()) return;
  environment_.Trace(Name() + " stands still");
  host_->Pause(time, timers_first);
}

void WorkerProcess::MoveTo(const Address& address) {
  environment_.Trace(Name() + " is seen at " + address.ToString());
  host_->Rebind(address, setup_.site);
}

std::string WorkerProcess::Violation() const {
  if (killed_) return "";
  if (!host_->violation().empty()) return Name() + ": " + host_->violation();
  if (!core_->ended() && tap_->NextTimeout().IsInfinite()) return Name() + " waits without an armed timer";
  if (core_->session().pending_operations() > 4 * tensors_.size() + 2) {
    return Name() + " has " + std::to_string(core_->session().pending_operations()) + " operations pending";
  }
  return "";
}

void WorkerProcess::OnState(State state) {
  // A later job on the same server is not the one this application was started for.
  const bool first_job = ledger_->jobs_finished + ledger_->jobs_aborted == 0;
  if (state == State::kStarted && first_job && !std::exchange(declared_, true)) DeclareAll();
  if (state == State::kStarted && !first_job) Later(Duration(0), [this] { LeaveStranded(); });
  if (state == State::kFailed) Ended(core_->failure());
  if (state == State::kLeft) Ended(Status::Ok());
}

void WorkerProcess::Ended(const Status& failure) {
  const Instant now = environment_.network->now();
  ProcessRecord& record = ledger_->processes[record_];
  record.ended = now;
  record.failure = failure;
  record.finished = all_done_ && failure.ok();
  record.stranded = stranded_;
  record.heard_lately = tap_->HeardSince(setup_.server, now - environment_.plan->idle_timeout + kTrail);
  record.last_heard = std::max(record.started, tap_->LastHeard(setup_.server));
  if (!failure.ok() && !setup_.meant_to_be_refused)
    ledger_->first_death = std::min(ledger_->first_death, now);
  environment_.network->Note(static_cast<uint64_t>(failure.code()));
  environment_.Trace(Name() + (failure.ok() ? " has left" : " failed: " + failure.ToString()));
}

void WorkerProcess::Later(Duration delay, std::function<void()> action) {
  environment_.network->Schedule(environment_.network->now() + delay,
                                 [this, alive = alive_, action = std::move(action)] {
                                   if (!*alive || over()) return;
                                   if (host_->paused()) {
                                     return Later(host_->resumes() - environment_.network->now(), action);
                                   }
                                   action();
                                   host_->Pump();
                                 });
}

// --- WorkerProcess: the application ---

size_t WorkerProcess::Record(const std::string& what) {
  OperationRecord& record = ledger_->operations.emplace_back();
  record.what = what;
  record.rank = setup_.rank;
  record.incarnation = setup_.incarnation;
  record.issued = environment_.network->now();
  return ledger_->operations.size() - 1;
}

void WorkerProcess::EndRecord(size_t operation, const Status& outcome) {
  OperationRecord& record = ledger_->operations[operation];
  ++record.ends;
  record.outcome = outcome;
  record.ended = environment_.network->now();
}

void WorkerProcess::DeclareAll() {
  const uint32_t chunk_elements = ledger_->chunk_elements;
  for (uint32_t i = 0; i < tensors_.size(); ++i) {
    const TensorPlan& plan = job().tensors[i];
    const uint32_t tail = plan.tail == 0 ? chunk_elements : std::min(plan.tail, chunk_elements);
    TensorRun& run = tensors_[i];
    run.gradient.resize(uint64_t{plan.chunks - 1} * chunk_elements + tail);
    run.out.resize(run.gradient.size());
    worker::Declaration declaration{.name = "tensor" + std::to_string(i),
                                    .wire_dtype = plan.wire,
                                    .count = run.gradient.size(),
                                    .optimizer = plan.Optimizer()};
    if (plan.initial_offers >> setup_.rank & 1) {
      for (uint64_t e = 0; e < run.gradient.size(); ++e) {
        run.initial.push_back(static_cast<float>(InitialValue(setup_.job, i, setup_.rank, e)));
      }
      declaration.initial = run.initial;
    }
    const size_t record = Record("declare " + declaration.name);
    core_->Declare(declaration, [this, i, record](const Result<worker::TensorHandle>& handle) {
      EndRecord(record, handle.status());
      if (!handle.ok()) return;
      tensors_[i].handle = *handle;
      FirstPull(i);
    });
  }
}

// Tells how many rounds the tensor has behind it: none, unless this process replaces another, or a round has
// gone on without it.
void WorkerProcess::FirstPull(uint32_t tensor) {
  const size_t record = Record("first pull of tensor" + std::to_string(tensor));
  core_->Pull(tensors_[tensor].handle, tensors_[tensor].out, {},
              [this, tensor, record](const Status& outcome, const OperationStats& stats) {
                EndRecord(record, outcome);
                if (!outcome.ok()) return;
                RecordVersion(tensor, stats.round);
                if (!job().IsOfSteps()) return Continue(tensor, stats.round);
                core_->Clock(tensors_[tensor].handle, [this, tensor](const Result<TensorClock>& clock) {
                  if (!clock.ok()) return;
                  tensors_[tensor].clock = clock->own;
                  Continue(tensor, clock->own);
                });
              });
}

void WorkerProcess::Continue(uint32_t tensor, uint64_t version) {
  if (version >= job().rounds) return TensorDone(tensor);
  if (job().gate > 0 && version >= job().gate && !environment_.gate_open) {
    tensors_[tensor].at_gate = version;
    return;
  }
  if (job().think.count() == 0) return Begin(tensor, version);
  const double share = chance_.Uniform();
  const Duration think(static_cast<int64_t>(static_cast<double>(job().think.count()) * share));
  Later(think, [this, tensor, version] { Begin(tensor, version); });
}

void WorkerProcess::Begin(uint32_t tensor, uint64_t version) {
  if (job().barriers) {
    Meet(tensor, version);
  } else {
    Push(tensor);
  }
}

bool WorkerProcess::AtGate() const {
  return std::ranges::all_of(tensors_, [](const TensorRun& run) { return run.done || run.at_gate; });
}

void WorkerProcess::PassGate() {
  if (over()) return;
  for (uint32_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    const std::optional<uint64_t> version = std::exchange(tensors_[tensor].at_gate, {});
    if (version) Continue(tensor, *version);
  }
  host_->Pump();
}

// No worker begins the round before all have come here.
void WorkerProcess::Meet(uint32_t tensor, uint64_t version) {
  const std::string name = "tensor" + std::to_string(tensor) + " round " + std::to_string(version);
  const size_t record = Record("barrier " + name);
  core_->Barrier(name, [this, tensor, record](const Status& outcome, const OperationStats&) {
    EndRecord(record, outcome);
    if (outcome.ok()) Push(tensor);
  });
}

void WorkerProcess::Push(uint32_t tensor) {
  TensorRun& run = tensors_[tensor];
  const TensorPlan& plan = job().tensors[tensor];
  PushRecord record;
  record.id = {setup_.job, tensor, setup_.rank, setup_.incarnation, run.sequence++};
  record.issued = environment_.network->now();
  for (uint64_t e = 0; e < run.gradient.size(); ++e) {
    run.gradient[e] = static_cast<float>(GradientValue(record.id, e, plan.Gradients()));
  }
  if (Sabotaged(Sabotage::kDoubledContribution) && record.id.sequence == 1) {
    for (float& value : run.gradient) value *= 2;
  }
  const size_t push = ledger_->pushes.size();
  ledger_->pushes.push_back(record);
  const auto end = [this, push](const Status& outcome, const OperationStats& stats) {
    OnPushEnd(push, outcome, stats);
    if (Sabotaged(Sabotage::kCallbackTwice)) ++ledger_->pushes[push].ends;
  };
  if (Sabotaged(Sabotage::kForgottenTimer) && record.id.sequence == 1) tap_->LoseTimers();
  if (plan.pull_apart) {
    core_->Push(run.handle, run.gradient, end);
  } else {
    core_->PushPull(run.handle, run.gradient, run.out, end);
  }
  on_push_(setup_.rank);
}

void WorkerProcess::OnPushEnd(size_t push, const Status& outcome, const OperationStats& stats) {
  PushRecord& record = ledger_->pushes[push];
  ++record.ends;
  record.ended = environment_.network->now();
  record.outcome = outcome;
  record.result_gone = outcome.code() == StatusCode::kAborted &&
                       outcome.message().find("its result is gone") != std::string::npos;
  record.passed_over = record.completed() && stats.chunks_sent == 0;
  record.round = stats.pushed_round;
  record.lost_chunks = stats.lost_chunks;
  environment_.network->Note(static_cast<uint64_t>(outcome.code()) << 32 | stats.round);
  const uint32_t tensor = record.id.tensor;
  if (outcome.ok()) {
    if (job().tensors[tensor].pull_apart) return PullAfterPush(tensor, stats.round + 1);
    if (job().downlink == Downlink::kLossy) {
      RecordReplica(tensor, stats.round + 1);
      return PullAfterPush(tensor, stats.round + 1);
    }
    const uint64_t version = job().IsOfSteps() ? stats.round : stats.round + 1;
    RecordVersion(tensor, version);
    return Continue(tensor, Done(tensor, version));
  }
  if (record.result_gone) FirstPull(tensor);
}

void WorkerProcess::PullAfterPush(uint32_t tensor, uint64_t version) {
  const size_t record = Record("pull of tensor" + std::to_string(tensor));
  core_->Pull(tensors_[tensor].handle, tensors_[tensor].out, {.min_round = version},
              [this, tensor, record, version](const Status& outcome, const OperationStats& stats) {
                EndRecord(record, outcome);
                if (!outcome.ok()) return;
                if (stats.round < version) {
                  ledger_->disagreements.push_back(Name() + " asked for version " + std::to_string(version) +
                                                   " and got " + std::to_string(stats.round));
                }
                RecordVersion(tensor, stats.round);
                Continue(tensor, Done(tensor, stats.round));
              });
}

void WorkerProcess::RecordReplica(uint32_t tensor, uint64_t version) {
  ledger_->replicas.push_back({tensor, setup_.rank, setup_.incarnation, version, tensors_[tensor].out});
}

void WorkerProcess::RecordVersion(uint32_t tensor, uint64_t version) {
  std::vector<float> values = tensors_[tensor].out;
  if (Sabotaged(Sabotage::kWrongOutput) && version == 2) values[3] += 1;
  VersionRecord& record = ledger_->versions[{tensor, version}];
  if (record.seen++ == 0) {
    record.values = std::move(values);
    record.first_rank = setup_.rank;
    return;
  }
  const auto same = [](float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); };
  const auto [mine, theirs] = std::ranges::mismatch(values, record.values, same);
  if (mine == values.end() && theirs == record.values.end()) return;
  std::ostringstream out;
  out << "tensor " << tensor << " version " << version << ": rank " << setup_.rank << " and rank "
      << record.first_rank << " differ at element " << mine - values.begin() << ": " << *mine << " against "
      << *theirs;
  ledger_->disagreements.push_back(out.str());
}

void WorkerProcess::TensorDone(uint32_t tensor) {
  tensors_[tensor].done = true;
  const std::span<const float> residual = core_->session().residual(tensors_[tensor].handle);
  ResidualRecord record{tensor, setup_.rank, setup_.incarnation, {residual.begin(), residual.end()}};
  if (Sabotaged(Sabotage::kLostResidual)) std::fill(record.values.begin(), record.values.end(), 0.0f);
  ledger_->residuals.push_back(std::move(record));
  if (std::ranges::all_of(tensors_, &TensorRun::done)) AllDone();
}

void WorkerProcess::AllDone() {
  const size_t record = Record("barrier");
  core_->Barrier("end", [this, record](const Status& outcome, const OperationStats&) {
    EndRecord(record, outcome);
    if (!outcome.ok()) return;
    all_done_ = true;
    ledger_->processes[record_].all_done = environment_.network->now();
    core_->Leave();
  });
}

}  // namespace longhaul::sim
