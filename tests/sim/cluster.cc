#include "tests/sim/cluster.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/check.h"
#include "base/inject.h"
#include "codec/fec/fec.h"
#include "tests/sim/checkers.h"
#include "tests/sim/liveness.h"
#include "tests/sim/processes.h"
#include "tests/sim/reference_coder.h"
#include "tests/sim/simulated_keys.h"

namespace longhaul::sim {
namespace {

using std::chrono::milliseconds;
using State = worker::WorkerCore::State;

constexpr uint16_t kServerPort = 7700;
constexpr size_t kMaxViolations = 20;
constexpr size_t kMaxPendingEvents = 50'000;
constexpr uint64_t kMaxEvents = 20'000'000;
constexpr Duration kTick = milliseconds(250);
// Beyond idle time-outs, until all know what has become of whom.
constexpr Duration kMissed = std::chrono::seconds(2);

// One for the process: making the library's descriptors takes longer than many a run.
codec::ErasureCoder* Coder() {
  static const std::unique_ptr<codec::ErasureCoder> coder = []() -> std::unique_ptr<codec::ErasureCoder> {
    auto library = codec::ErasureCodeLibrary::Create();
    if (library.ok()) return std::move(*library);
    return std::make_unique<codec::ReferenceCoder>();  // bit-identical
  }();
  return coder.get();
}

wan::VirtualNetwork::Options NetworkOptions(const RunPlan& plan) {
  wan::VirtualNetwork::Options options;
  options.seed = plan.seed ^ 0x6e6574776f726bull;
  return options;
}

class Cluster {
 public:
  Cluster(const RunPlan& plan, const std::function<void(const std::string&)>& trace);
  RunResult Run();

 private:
  using SiteId = wan::VirtualNetwork::SiteId;

  static SiteId HomeOf(uint32_t rank) { return 1 + rank; }
  SiteId SpareOf(uint32_t rank) const { return 1 + plan_.sites() + rank; }

  void StartWorker(uint32_t job, uint32_t rank, uint64_t incarnation, SiteId site,
                   bool to_be_refused = false);
  void StartWorkerIn(Duration delay, uint32_t job, uint32_t rank, uint64_t incarnation, SiteId site,
                     bool to_be_refused = false);
  void In(Duration delay, std::function<void()> action) {
    network_.Schedule(network_.now() + delay, std::move(action));
  }
  void OnPush(uint32_t job, uint32_t rank);
  void StrikeIn(const Fault& fault);
  void Strike(const Fault& fault);
  void CutOff(SiteId site, bool up, bool down, Duration duration);
  WorkerProcess* Newest(uint32_t job, uint32_t rank);
  void KillAndRestart(const Fault& fault);
  void PartitionAndReplace(const Fault& fault);
  void StaleAfterLoss(const Fault& fault);
  void MoveAway(const Fault& fault);
  void StartTwin(const Fault& fault);
  void ChangeWeather(const Fault& fault);
  void Attack(const Fault& fault, Instant end);
  bool MayOpenGate() const;
  void OpenGate();
  void Tick();
  void ReleaseStranded(uint32_t job);
  bool Over() const;
  void Settle();
  void Violation(const std::string& what);

  RunPlan plan_;
  wan::VirtualNetwork network_;
  Environment environment_;
  Random chance_;
  std::vector<JobLedger> ledgers_;
  std::vector<std::unique_ptr<ServerProcess>> servers_;
  std::vector<std::unique_ptr<WorkerProcess>> workers_;
  std::vector<std::vector<uint32_t>> pushes_;        // by job and rank
  std::vector<std::vector<uint64_t>> incarnations_;  // the newest given out, by job and rank
  std::vector<uint32_t> starts_pending_;             // by job
  uint32_t strikes_pending_ = 0;
  Instant faults_end_;  // of what has struck so far, and of what it does
  uint16_t next_port_ = 4000;
  bool settling_ = false;
  RunResult result_;
};

Cluster::Cluster(const RunPlan& plan, const std::function<void(const std::string&)>& trace)
    : plan_(plan),
      network_(NetworkOptions(plan)),
      environment_{&plan_, &network_, Coder(), trace, false},
      chance_(Random(plan.seed).Fork(3)),
      ledgers_(plan.jobs.size()),
      starts_pending_(plan.jobs.size(), 0) {
  if (plan.protection != Protection::kTag) SeedOpenSsl(plan.seed);
  network_.AddSite("servers");
  for (uint32_t rank = 0; rank < plan.sites(); ++rank) network_.AddSite("site" + std::to_string(rank));
  for (uint32_t rank = 0; rank < plan.sites(); ++rank) network_.AddSite("spare" + std::to_string(rank));
  for (uint32_t rank = 0; rank < plan.sites(); ++rank) {
    for (const SiteId site : {HomeOf(rank), SpareOf(rank)}) {
      network_.SetLink(site, 0, plan.up[rank]);
      network_.SetLink(0, site, plan.down[rank]);
    }
  }
  for (uint32_t job = 0; job < plan_.jobs.size(); ++job) {
    const Address address = Address::V4(10, 0, 0, 1, static_cast<uint16_t>(kServerPort + job));
    servers_.push_back(std::make_unique<ServerProcess>(environment_, job, address, 0, &ledgers_[job]));
    pushes_.emplace_back(plan_.jobs[job].workers, 0);
    incarnations_.emplace_back(plan_.jobs[job].workers, 0);
    for (uint32_t rank = 0; rank < plan_.jobs[job].workers; ++rank) {
      StartWorkerIn(plan_.jobs[job].start_delays[rank], job, rank, 0, HomeOf(rank));
    }
  }
}

void Cluster::Violation(const std::string& what) {
  environment_.Trace("VIOLATION: " + what);
  if (result_.violations.size() < kMaxViolations) result_.violations.push_back(what);
}

// --- Processes ---

void Cluster::StartWorker(uint32_t job, uint32_t rank, uint64_t incarnation, SiteId site,
                          bool to_be_refused) {
  if (servers_[job]->over() && incarnation > 0) return;
  WorkerProcess::Setup setup;
  setup.job = job;
  setup.rank = rank;
  setup.incarnation = incarnation;
  setup.address = Address::V4(10, 0, static_cast<uint8_t>(site), 1, next_port_++);
  setup.site = site;
  setup.server = servers_[job]->address();
  setup.meant_to_be_refused = to_be_refused;
  workers_.push_back(std::make_unique<WorkerProcess>(environment_, setup, &ledgers_[job],
                                                     [this, job](uint32_t who) { OnPush(job, who); }));
  workers_.back()->Start();
}

void Cluster::StartWorkerIn(Duration delay, uint32_t job, uint32_t rank, uint64_t incarnation, SiteId site,
                            bool to_be_refused) {
  ++starts_pending_[job];
  In(delay, [=, this] {
    --starts_pending_[job];
    StartWorker(job, rank, incarnation, site, to_be_refused);
  });
}

WorkerProcess* Cluster::Newest(uint32_t job, uint32_t rank) {
  for (auto it = workers_.rbegin(); it != workers_.rend(); ++it) {
    const WorkerProcess::Setup& setup = (*it)->setup();
    if (setup.job == job && setup.rank == rank && !setup.meant_to_be_refused) return it->get();
  }
  return nullptr;
}

// --- Faults ---

void Cluster::OnPush(uint32_t job, uint32_t rank) {
  const uint32_t count = ++pushes_[job][rank];
  if (environment_.gate_open) return;
  for (const Fault& fault : plan_.faults) {
    if (fault.job == job && fault.rank == rank && fault.after_push == count) StrikeIn(fault);
  }
}

void Cluster::StrikeIn(const Fault& fault) {
  ++strikes_pending_;
  In(fault.delay, [this, fault] {
    --strikes_pending_;
    Strike(fault);
  });
}

void Cluster::Strike(const Fault& fault) {
  environment_.Trace("fault: " + fault.ToString());
  const SiteId home = HomeOf(fault.rank);
  WorkerProcess* worker = Newest(fault.job, fault.rank);
  // Who is dead because of it has been missed by then.
  const Duration missed = MayKill(fault, plan_.idle_timeout) ? plan_.idle_timeout * 2 + kMissed : kMissed;
  faults_end_ = std::max(faults_end_, network_.now() + fault.duration + missed);
  switch (fault.kind) {
    case FaultKind::kUplinkOutage:
      return CutOff(home, true, false, fault.duration);
    case FaultKind::kDownlinkOutage:
      return CutOff(home, false, true, fault.duration);
    case FaultKind::kFullOutage:
      return CutOff(home, true, true, fault.duration);
    case FaultKind::kKillForGood:
      ledgers_[fault.job].first_death = std::min(ledgers_[fault.job].first_death, network_.now());
      return worker->Kill();
    case FaultKind::kKillAndRestart:
    case FaultKind::kStaleIncarnation:
      return KillAndRestart(fault);
    case FaultKind::kPartitionAndReplace:
      return PartitionAndReplace(fault);
    case FaultKind::kServerKill:
      return servers_[fault.job]->Kill();
    case FaultKind::kServerRestart:
      return servers_[fault.job]->Restart(fault.duration);
    case FaultKind::kServerShutdown:
      return servers_[fault.job]->Shutdown();
    case FaultKind::kWorkerPause:
      return worker->Pause(fault.duration, fault.other);
    case FaultKind::kServerPause:
      return servers_[fault.job]->Pause(fault.duration, fault.other);
    case FaultKind::kAddressChange:
      return MoveAway(fault);
    case FaultKind::kTwin:
      return StartTwin(fault);
    case FaultKind::kStaleAfterLoss:
      return StaleAfterLoss(fault);
    case FaultKind::kWeather:
      return ChangeWeather(fault);
    case FaultKind::kRandomDatagrams:
      return Attack(fault, network_.now() + fault.duration);
  }
}

void Cluster::CutOff(SiteId site, bool up, bool down, Duration duration) {
  const auto cut = [&](SiteId from, SiteId to) {
    wan::LinkOptions options = network_.Link(from, to).options();
    const Duration now(network_.now().nanoseconds());
    options.outages.push_back({now, now + duration});
    network_.SetLink(from, to, options);
  };
  if (up) cut(site, 0);
  if (down) cut(0, site);
}

void Cluster::KillAndRestart(const Fault& fault) {
  WorkerProcess* worker = Newest(fault.job, fault.rank);
  if (worker->over() || incarnations_[fault.job][fault.rank] >= kMaxIncarnation) return;
  const uint64_t next = ++incarnations_[fault.job][fault.rank];
  worker->Kill();
  StartWorkerIn(fault.duration, fault.job, fault.rank, next, HomeOf(fault.rank));
  if (fault.kind == FaultKind::kStaleIncarnation) {
    StartWorkerIn(fault.duration + milliseconds(700), fault.job, fault.rank, next - 1, HomeOf(fault.rank),
                  true);
  }
}

void Cluster::PartitionAndReplace(const Fault& fault) {
  const bool over = Newest(fault.job, fault.rank)->over();
  if (over || incarnations_[fault.job][fault.rank] >= kMaxIncarnation) return;
  const uint64_t next = ++incarnations_[fault.job][fault.rank];
  CutOff(HomeOf(fault.rank), true, true, fault.duration + milliseconds(1500));
  StartWorkerIn(fault.duration, fault.job, fault.rank, next, SpareOf(fault.rank));
}

// The successor dies as well. When the server has missed it, the first one's incarnation is still over.
void Cluster::StaleAfterLoss(const Fault& fault) {
  const uint64_t before = incarnations_[fault.job][fault.rank];
  KillAndRestart(fault);
  if (incarnations_[fault.job][fault.rank] == before) return;
  const Duration dead = fault.duration + milliseconds(800);
  ++starts_pending_[fault.job];  // also where another fault kills the successor, and all the others are over
  In(dead, [this, fault, before] {
    --starts_pending_[fault.job];
    ledgers_[fault.job].first_death = std::min(ledgers_[fault.job].first_death, network_.now());
    WorkerProcess* successor = Newest(fault.job, fault.rank);
    // One that the server has not let in makes nothing stale.
    const bool was_in = successor->state() == State::kJoined || successor->state() == State::kStarted;
    successor->Kill();
    if (!was_in) return;
    StartWorkerIn(plan_.idle_timeout + std::chrono::seconds(3), fault.job, fault.rank, before,
                  HomeOf(fault.rank), true);
  });
}

void Cluster::MoveAway(const Fault& fault) {
  WorkerProcess* worker = Newest(fault.job, fault.rank);
  if (worker->over() || worker->state() != State::kStarted) return;
  const auto site = static_cast<uint8_t>(worker->setup().site);
  const Address to = Address::V4(10, 0, site, fault.other ? 2 : 1, next_port_++);
  worker->MoveTo(to);
  servers_[fault.job]->OnMoved(fault.rank, to);
}

void Cluster::StartTwin(const Fault& fault) {
  const WorkerProcess* worker = Newest(fault.job, fault.rank);
  if (worker->over() || worker->state() != State::kStarted) return;
  StartWorker(fault.job, fault.rank, worker->setup().incarnation, SpareOf(fault.rank), true);
}

void Cluster::ChangeWeather(const Fault& fault) {
  const auto change = [&](SiteId from, SiteId to) {
    network_.SetLink(from, to, fault.weather.Apply(network_.Link(from, to).options()));
  };
  for (const SiteId site : {HomeOf(fault.rank), SpareOf(fault.rank)}) {
    if (fault.weather.up) change(site, 0);
    if (fault.weather.down) change(0, site);
  }
}

// Garbage from strangers, damaged copies and exact replays of what the server has received, each every few
// milliseconds until `end`.
void Cluster::Attack(const Fault& fault, Instant end) {
  const ServerProcess& server = *servers_[fault.job];
  const auto& samples = server.tap().samples();
  Address from = Address::V4(10, 0, static_cast<uint8_t>(SpareOf(fault.rank)), 66, 6666);
  std::vector<uint8_t> bytes(1 + chance_.Below(1500));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(chance_.Next());
  if (!samples.empty() && chance_.Chance(0.7)) {
    const TappedCore::Sample& sample = samples[chance_.Below(samples.size())];
    from = sample.from;
    bytes = sample.bytes;
    const bool replay = chance_.Chance(0.5);
    if (!replay) bytes[chance_.Below(bytes.size())] ^= static_cast<uint8_t>(1 + chance_.Below(255));
    if (!replay && chance_.Chance(0.3)) bytes.resize(1 + chance_.Below(bytes.size()));
  }
  network_.Send(from, server.address(), bytes);
  const Duration pause(static_cast<int64_t>(-10e6 * std::log1p(-chance_.Uniform())));
  if (network_.now() + pause < end) In(pause, [this, fault, end] { Attack(fault, end); });
}

// --- The run ---

RunResult Cluster::Run() {
  In(kTick, [this] { Tick(); });
  for (const Fault& fault : plan_.faults) {
    if (fault.after_push == 0) StrikeIn(fault);
  }
  const Duration limit = plan_.time_limit > Duration(0) ? plan_.time_limit : TimeLimit(plan_);
  while (!Over() && result_.violations.empty()) {
    network_.Step();
    if (network_.now() - Instant() > limit) {
      Violation("no end after " + std::to_string(limit.count() / 1'000'000'000) + " s");
      for (const auto& worker : workers_) {
        if (!worker->over()) Violation("still at work: " + worker->Name());
      }
    }
    if (network_.counters().events_run > kMaxEvents) Violation("more events than any run needs");
  }
  result_.finished = network_.now();
  result_.share_of_limit = InSeconds(result_.finished - Instant()) / InSeconds(limit);
  if (result_.violations.empty()) Settle();
  for (uint32_t job = 0; job < ledgers_.size() && result_.violations.empty(); ++job) {
    CheckJob(plan_, job, ledgers_[job], &result_);
  }
  for (const std::string& violation : result_.violations) environment_.Trace("VIOLATION: " + violation);
  result_.encrypted = plan_.protection != Protection::kTag;
  result_.event_log_hash = network_.event_log_hash();
  result_.events = network_.counters().events_run;
  result_.datagrams = network_.counters().datagrams_sent;
  result_.ledgers = std::move(ledgers_);
  return std::move(result_);
}

bool Cluster::Over() const {
  return std::ranges::all_of(starts_pending_, [](uint32_t n) { return n == 0; }) &&
         std::ranges::all_of(workers_, [](const auto& worker) { return worker->over(); });
}

void Cluster::Tick() {
  for (const auto& worker : workers_) {
    if (const std::string what = worker->Violation(); !what.empty()) Violation(what);
  }
  for (const auto& server : servers_) {
    if (const std::string what = server->Violation(); !what.empty()) Violation(what);
  }
  result_.most_pending_events = std::max(result_.most_pending_events, network_.pending_events());
  if (network_.pending_events() > kMaxPendingEvents) Violation("the network's events pile up");
  for (uint32_t job = 0; job < ledgers_.size(); ++job) ReleaseStranded(job);
  if (!environment_.gate_open && MayOpenGate()) OpenGate();
  if (!settling_) In(kTick, [this] { Tick(); });
}

// All faults are over, and all that are left have come to the gate.
bool Cluster::MayOpenGate() const {
  if (strikes_pending_ > 0 || network_.now() < faults_end_) return false;
  if (std::ranges::any_of(servers_, [](const auto& server) { return server->down(); })) return false;
  if (std::ranges::any_of(starts_pending_, [](uint32_t n) { return n > 0; })) return false;
  return std::ranges::all_of(workers_, [](const auto& worker) { return worker->over() || worker->AtGate(); });
}

void Cluster::OpenGate() {
  environment_.Trace("the network is healed");
  environment_.gate_open = true;
  std::vector<wan::LinkOptions> up, down;
  for (uint32_t rank = 0; rank < plan_.sites(); ++rank) {
    for (const SiteId site : {HomeOf(rank), SpareOf(rank)}) {
      network_.SetLink(site, 0, Healed(network_.Link(site, 0).options()));
      network_.SetLink(0, site, Healed(network_.Link(0, site).options()));
    }
    up.push_back(network_.Link(HomeOf(rank), 0).options());
    down.push_back(network_.Link(0, HomeOf(rank)).options());
  }
  for (uint32_t job = 0; job < ledgers_.size(); ++job) {
    JobLedger& ledger = ledgers_[job];
    if (plan_.jobs[job].gate == 0) continue;
    ledger.healed = network_.now();
    ledger.lossless = LosslessRound(plan_, job, ledger.chunk_elements, up, down) *
                      (plan_.jobs[job].rounds - plan_.jobs[job].gate);
  }
  for (const auto& worker : workers_) worker->PassGate();
}

// Workers that wait for the start of a job that can never start, since others will not come.
void Cluster::ReleaseStranded(uint32_t job) {
  if (starts_pending_[job] > 0) return;
  uint32_t waiting = 0;
  for (const auto& worker : workers_) {
    if (worker->setup().job != job || worker->over()) continue;
    if (worker->state() != State::kJoined) return;
    ++waiting;
  }
  if (waiting == 0 || waiting >= plan_.jobs[job].workers) return;
  for (const auto& worker : workers_) {
    if (worker->setup().job == job) worker->LeaveStranded();
  }
}

// When all is over, all falls silent: no core keeps a timer or a peer.
void Cluster::Settle() {
  settling_ = true;
  // A server that stands still misses what has died only when it goes on.
  Duration pauses{0};
  for (const Fault& fault : plan_.faults) pauses += IsPause(fault.kind) ? fault.duration : Duration(0);
  network_.RunFor(plan_.idle_timeout * 2 + std::chrono::seconds(6) + pauses);
  for (const auto& worker : workers_) {
    if (!worker->Silent()) Violation(worker->Name() + " does not fall silent after its end");
  }
  for (const auto& server : servers_) {
    if (!server->Silent()) Violation("server " + server->address().ToString() + " does not fall silent");
  }
  if (network_.pending_events() > 0) Violation("events are left when everything is over");
}

}  // namespace

uint32_t RunResult::FinishedProcesses() const {
  uint32_t count = 0;
  for (const JobLedger& ledger : ledgers) {
    count += static_cast<uint32_t>(std::ranges::count_if(ledger.processes, &ProcessRecord::finished));
  }
  return count;
}

RunResult RunCluster(const RunPlan& plan, const std::function<void(const std::string&)>& trace) {
  LH_CHECK(inject::Enable(plan.injections).ok());
  RunResult result = Cluster(plan, trace).Run();
  inject::Disable();
  return result;
}

}  // namespace longhaul::sim
