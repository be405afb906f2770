// The processes of a simulated cluster: workers that run a small training application, and servers. Each is a
// sans-I/O core behind a SimulatedHost; what the application sees goes into the ledger.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codec/fec/erasure_coder.h"
#include "server/server_core.h"
#include "tests/sim/ledger.h"
#include "tests/sim/plan.h"
#include "tests/sim/simulated_host.h"
#include "tests/sim/simulated_log.h"
#include "worker/client/worker_core.h"

namespace longhaul::sim {

// Stands between a host and its core and takes notes: who was heard when, and a few datagrams as they came.
class TappedCore final : public transport::DatagramCore {
 public:
  struct Sample {
    Address from;
    std::vector<uint8_t> bytes;
  };

  explicit TappedCore(transport::DatagramCore* core) : core_(core) {}

  void HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                      const transport::ReceiveInfo& info) override;
  void HandleTimeout(Instant now) override { core_->HandleTimeout(now); }
  void HandleSendRefused(Instant now, const Address& to, size_t bytes) override {
    core_->HandleSendRefused(now, to, bytes);
  }
  std::optional<transport::Transmit> PollTransmit(Instant now, MutableByteSpan buffer) override {
    return core_->PollTransmit(now, buffer);
  }
  Instant NextTimeout() const override { return deaf_to_time_ ? Instant::Infinite() : core_->NextTimeout(); }
  bool HasWork() const override { return core_->HasWork(); }
  void Work(Instant now) override { core_->Work(now); }

  // Datagrams from this address later than `since` (counts to 32 at most).
  uint32_t HeardSince(const Address& from, Instant since) const;
  // Zero when nothing was.
  Instant LastHeard(const Address& from) const;
  const std::vector<Sample>& samples() const { return samples_; }
  void LoseTimers() { deaf_to_time_ = true; }

 private:
  static constexpr size_t kMaxSamples = 24;
  struct Heard {
    std::array<Instant, 32> times;
    uint32_t next = 0;
  };
  transport::DatagramCore* core_;
  std::unordered_map<Address, Heard> heard_;
  std::vector<Sample> samples_;
  uint64_t datagrams_ = 0;
  bool deaf_to_time_ = false;
};

// Behind the last datagram that counted as heard, copies and damaged ones may still be on their way.
inline constexpr Duration kTrail = std::chrono::milliseconds(500);

// What all processes of a run share.
struct Environment {
  const RunPlan* plan = nullptr;
  wan::VirtualNetwork* network = nullptr;
  codec::ErasureCoder* coder = nullptr;
  std::function<void(const std::string&)> trace;  // may be empty
  bool gate_open = false;                         // what all jobs' gates wait for

  void Trace(const std::string& line) const;
};

// A worker process: joins, declares, pulls once, pushes round after round, waits for the others, leaves.
class WorkerProcess {
 public:
  struct Setup {
    uint32_t job = 0;
    uint32_t rank = 0;
    uint64_t incarnation = 0;
    Address address;
    wan::VirtualNetwork::SiteId site = 0;
    Address server;
    bool meant_to_be_refused = false;
  };

  // `environment` must outlive it.
  WorkerProcess(const Environment& environment, const Setup& setup, JobLedger* ledger,
                std::function<void(uint32_t rank)> on_push);
  ~WorkerProcess();

  void Start();
  // kill -9.
  void Kill();
  // No job will come any more: the application gives up.
  void LeaveStranded();
  // SIGSTOP, and SIGCONT after this time.
  void Pause(Duration time, bool timers_first);
  // Its packets come from another address from now on.
  void MoveTo(const Address& address);
  // Every tensor is done, or waits at the gate.
  bool AtGate() const;
  // Environment::gate_open has become true.
  void PassGate();

  const Setup& setup() const { return setup_; }
  // Nothing more will happen to it.
  bool over() const { return killed_ || core_->ended(); }
  bool killed() const { return killed_; }
  worker::WorkerCore::State state() const { return core_->state(); }
  // What is wrong with its dealings with time and bounds; empty when nothing is.
  std::string Violation() const;
  // The core wants nothing any more: no datagram, no timer. REQUIRES: over().
  bool Silent() const { return killed_ || (core_->finished() && core_->NextTimeout().IsInfinite()); }
  std::string Name() const;

 private:
  struct TensorRun {
    worker::TensorHandle handle = 0;
    std::vector<float> initial;
    std::vector<float> gradient;
    std::vector<float> out;
    uint32_t sequence = 0;
    uint64_t clock = 0;  // of steps: with which this process began
    bool done = false;
    std::optional<uint64_t> at_gate;  // the version with which it waits there
  };

  const JobPlan& job() const { return environment_.plan->jobs[setup_.job]; }
  void OnState(worker::WorkerCore::State state);
  void DeclareAll();
  void FirstPull(uint32_t tensor);
  // Rounds that this worker has behind it, at this version.
  uint64_t Done(uint32_t tensor, uint64_t version) const {
    return job().IsOfSteps() ? tensors_[tensor].clock + tensors_[tensor].sequence : version;
  }
  // The tensor has finished so many rounds: on to the next, or done.
  void Continue(uint32_t tensor, uint64_t version);
  void Begin(uint32_t tensor, uint64_t version);
  void Meet(uint32_t tensor, uint64_t version);
  void Push(uint32_t tensor);
  void OnPushEnd(size_t push, const Status& outcome, const OperationStats& stats);
  void PullAfterPush(uint32_t tensor, uint64_t version);
  void TensorDone(uint32_t tensor);
  void AllDone();
  void RecordVersion(uint32_t tensor, uint64_t version);
  void RecordReplica(uint32_t tensor, uint64_t version);
  size_t Record(const std::string& what);
  void EndRecord(size_t operation, const Status& outcome);
  void Ended(const Status& failure);
  void Later(Duration delay, std::function<void()> action);
  bool Sabotaged(Sabotage kind) const {
    return environment_.plan->sabotage == kind && setup_.rank + 1 == job().workers;
  }

  const Environment& environment_;
  Setup setup_;
  JobLedger* ledger_;
  size_t record_;  // in ledger_->processes
  std::function<void(uint32_t)> on_push_;
  Random chance_;
  // The application's memory outlives the core that borrows it.
  std::vector<TensorRun> tensors_;
  std::unique_ptr<transport::Security> security_;  // may be null
  std::unique_ptr<worker::WorkerCore> core_;
  std::unique_ptr<TappedCore> tap_;
  std::unique_ptr<SimulatedHost> host_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  bool killed_ = false;
  bool declared_ = false;
  bool all_done_ = false;
  bool stranded_ = false;
};

class ServerProcess final : public server::ServerEvents {
 public:
  ServerProcess(const Environment& environment, uint32_t job, const Address& address,
                wan::VirtualNetwork::SiteId site, JobLedger* ledger);

  void Kill();
  // kill -9; the next process starts after this time.
  void Restart(Duration after);
  void Pause(Duration time, bool timers_first);
  // SIGTERM.
  void Shutdown();
  // The rank speaks from another address.
  void OnMoved(uint32_t rank, const Address& to) { addresses_[rank].push_back(to); }
  bool over() const { return killed_ || !shutdown_.IsInfinite(); }
  // Between two of its processes.
  bool down() const { return down_; }
  std::string Violation() const;
  bool Silent() const { return killed_ || (core_->Drained() && core_->NextTimeout().IsInfinite()); }
  const Address& address() const { return address_; }
  const TappedCore& tap() const { return *tap_; }

  // ServerEvents
  void OnJoin(uint32_t rank, const server::Member& member, bool replaces) override;
  void OnRefused(const Address& peer, const std::string& who, const Status& why) override;
  void OnStart(uint32_t workers, uint32_t symbol_bytes) override;
  void OnRound(const server::JobRound& round, const server::ServerStats& stats) override;
  void OnLeave(uint32_t rank, const std::string& who, const Status& why) override;
  void OnJobOver(const Status& outcome, const server::ServerStats& stats) override;

 private:
  // A process starts.
  void Boot();
  uint32_t HeardSince(uint32_t rank, Instant since) const;
  void CheckTakeover(uint32_t rank, const server::Member& member, bool replaces);

  const Environment& environment_;
  uint32_t job_;
  const Address address_;
  const wan::VirtualNetwork::SiteId site_;
  JobLedger* ledger_;
  MemoryFiles disk_;
  uint64_t boots_ = 0;
  std::unique_ptr<transport::Security> security_;  // may be null
  std::unique_ptr<SimulatedLog> log_;              // null: not durable
  std::unique_ptr<server::ServerCore> core_;
  std::unique_ptr<TappedCore> tap_;
  std::unique_ptr<SimulatedHost> host_;
  std::vector<std::vector<Address>> addresses_;  // by rank: of its newest process, the latest last
  Instant shutdown_ = Instant::Infinite();
  std::vector<std::optional<uint64_t>> incarnations_;  // by rank: the newest that was let in
  bool killed_ = false;
  bool down_ = false;
};

}  // namespace longhaul::sim
