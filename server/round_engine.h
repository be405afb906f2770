// Everything between the start of a job and its end: declarations, pushes, rounds, results, pulls.
//
// Works on connections by way of Peer; who may join and what happens when somebody is gone is decided
// elsewhere (server/coordinator.h), which tells the engine. Not thread-safe. Time is set by SetNow before any
// event.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/instant.h"
#include "codec/window_metadata.h"
#include "server/close_times.h"
#include "server/contribution_guard.h"
#include "server/membership.h"
#include "server/memory_budget.h"
#include "server/parameter_store.h"
#include "server/peer.h"
#include "server/result_sender.h"
#include "server/settings.h"
#include "server/shift_epochs.h"
#include "server/stragglers.h"
#include "server/tensor.h"
#include "transport/core/window/close_rule.h"

namespace longhaul::server {

// A round of a tensor is finished.
struct TensorRound {
  const Tensor* tensor = nullptr;
  uint64_t round = 0;
  Instant begun;  // first window opened
  uint32_t last_rank = 0;
  uint32_t contributors = 0;
  RoundTally tally;
};

// The guard refused a chunk of a push: told once for each push.
struct Rejection {
  uint32_t rank = 0;
  std::string tensor;
  uint64_t round = 0;
  uint32_t chunk = 0;    // the first one
  std::string_view why;  // GuardVerdictName
  double excess = 0;     // "too large": the chunk's norm by the usual one
};

// What the engine asks of its owner.
class RoundEngineHost {
 public:
  virtual ~RoundEngineHost() = default;
  virtual void Send(Peer& peer, const control::ControlMessage& message) = 0;
  // The peer broke the protocol: its connection ends with this. May be called several times.
  virtual void Disconnect(Peer& peer, const Status& why) = 0;
  // The job cannot go on. Takes effect after the event in progress.
  virtual void RequestAbort(const Status& why) = 0;
  // Null when the rank has no connection.
  virtual Peer* PeerOfRank(uint32_t rank) = 0;
  virtual void OnTensorRound(const TensorRound& round) = 0;
  virtual void OnRejected(const Rejection& rejection) = 0;
};

// Counters; by_rank has one entry per rank.
struct EngineStats {
  struct Rank {
    uint64_t chunks = 0;             // contributions added
    uint64_t repaired = 0;           // of them rebuilt by FEC
    uint64_t lost = 0;               // contributions that did not arrive, or were rejected
    uint64_t rejected = 0;           // of them refused by the guard
    uint64_t excluded = 0;           // rounds that were over without it
    uint64_t close_reasons[6] = {};  // windows, by wire::CloseReason
  };
  uint64_t tensor_rounds = 0;
  uint64_t filled = 0;
  uint64_t tolerated = 0;
  uint64_t duplicate_contributions = 0;  // not added: the rank's contribution was in
  uint64_t taken_and_dropped = 0;        // of those and of the rejected: settled, so that nobody repays them
  uint64_t late_chunks = 0;              // of a round that was over, or of a chunk that was final
  uint64_t epoch_refused = 0;            // chunks of another shift epoch
  uint64_t old_windows_refused = 0;      // of a round that was over
  uint64_t late_windows_taken = 0;       // of a round that was over: taken into the one in progress
  uint64_t pulls_held = 0;    // answers that had to wait for memory (kMaxPinnedModels, kMaxPullsOfTensor)
  uint64_t state_hashes = 0;  // told, downlink lossy
  std::vector<Rank> by_rank;
};

class RoundEngine {
 public:
  static constexpr size_t kMaxPendingPulls = 64;  // per worker: of one tensor, and answered but not finished
  static constexpr uint32_t kMaxWaitingPulls = 4096;  // per worker, of all tensors
  // Snapshots of parameters that pulls hold, in models (4 bytes x elements of all tensors). Workers that pull
  // the same version share one; more versions are held only for workers that take rounds to receive them.
  // Beyond this a pull that needs another snapshot waits until one is free.
  static constexpr uint64_t kMaxPinnedModels = MemoryBudget::kPinnedModels;
  // Of one tensor, per worker: answered but not finished. Each has a table of the tensor's chunks; further
  // ones wait.
  static constexpr size_t kMaxPullsOfTensor = MemoryBudget::kPullsOfTensor;
  static constexpr uint32_t kMaxHeldDeclares = 4096;  // per worker, of all tensors

  RoundEngine(const ServerSettings& settings, uint16_t symbol_bytes, const Membership* membership,
              RoundEngineHost* host);

  void SetNow(Instant now) { now_ = now; }

  // --- Control messages of members ---
  void OnDeclare(Peer& peer, const control::Declare& declare);
  void OnPullRequest(Peer& peer, const control::PullRequest& pull);

  // --- Windows (see transport::ConnectionObserver) ---
  Status OnWindowOpened(Peer& peer, transport::WindowKey key, const wire::WindowOpenFrame& open);
  // Refused: what does not count in the round in progress. It is the worker's again.
  transport::ChunkVerdict OnChunk(Peer& peer, transport::WindowKey key, bool high, ByteSpan chunk,
                                  bool repaired);
  void OnWindowProgress(Peer& peer, transport::WindowKey key);
  void OnOutgoingClosed(Peer& peer, transport::WindowKey key, const transport::WindowReceipt& receipt);

  // --- Membership. The peer's connection is over, or about to be: nothing is sent to it any more. ---
  // A worker joined (again) after the start.
  void OnMemberJoined(uint32_t rank);
  // The rank's connection was replaced by a newer incarnation's; `old` is out.
  void OnMemberReplaced(uint32_t rank, Peer& old);
  void OnMemberGone(uint32_t rank, Peer& peer);
  // The job ends: nothing of this engine is borrowed by the peer's connection any more.
  void DropPeer(Peer& peer);

  // Windows that time alone closes.
  void HandleTimeout();
  Instant NextTimeout() const { return next_check_; }

  const EngineStats& stats() const { return stats_; }
  const ResultSender& results() const { return results_; }
  uint64_t elements() const { return store_.elements(); }
  const MemoryBudget& memory() const { return memory_; }
  size_t tensor_count() const { return tensors_.size(); }
  uint64_t rounds_completed(uint32_t key) const { return tensors_[key]->tensor.rounds().number(); }

 private:
  struct HeldDeclare {
    uint32_t rank = 0;
    control::ControlMessage answer;
  };
  struct PendingPull {
    uint32_t rank = 0;
    uint32_t request = 0;
    uint64_t min_round = 0;
    bool held = false;
  };
  // A tensor and who waits for it.
  struct Entry {
    Entry(Parameters* parameters, uint32_t ranks, const codec::LossPolicySpec& policy,
          Aggregator::Order order, double norm_guard, Stragglers waiting)
        : tensor(parameters, ranks, policy, order),
          guard(parameters->gradient_geometry().chunks(), ranks, norm_guard, codec::Repays(policy.policy)),
          epochs(policy.policy == codec::LossPolicy::kShift, ranks),
          stragglers(std::move(waiting)),
          window_times(ranks),
          declared(ranks, false),
          late(ranks, false) {}
    Tensor tensor;
    ContributionGuard guard;
    ShiftEpochs epochs;
    Stragglers stragglers;
    std::vector<CloseTimes> window_times;  // by rank: from a window's opening to its close
    std::vector<bool> declared;            // by rank
    Instant values_since;                  // when version 0 was there
    std::vector<bool> late;                // by rank: takes part from the next round
    std::vector<HeldDeclare> held;         // answered when the round in progress is finished
    std::vector<PendingPull> pulls;
  };

  Entry* Find(uint32_t key) { return key < tensors_.size() ? tensors_[key].get() : nullptr; }
  Entry& EntryOf(const Tensor& tensor) { return *tensors_[tensor.key()]; }
  Status CheckMemory(const TensorSpec& spec);
  Entry& AddTensor(Parameters* parameters);
  bool OfferInitial(Entry& entry, Peer& peer, bool has_initial);
  void DecideZeros(Entry& entry);
  void OnValues(Entry& entry);
  static bool HasValues(const Entry& entry);
  void BeginEpoch(Entry& entry);
  void SetEpoch(const Entry& entry, control::Declared& declared) const;
  void SetStateHash(const Tensor& tensor, control::RoundReport& report);
  void SetReplicaHash(const Tensor& tensor, uint32_t rank, control::RoundReport& report) const;
  // Ok: a tensor with this optimizer can have a lossy downlink, or the job's is reliable.
  Status CheckDownlink(const OptimizerSpec& optimizer) const;
  Status OpenGradient(Peer& peer, transport::WindowKey key, const codec::WindowMetadata& metadata,
                      Entry& entry);
  Status OpenInitial(Peer& peer, transport::WindowKey key, Entry& entry);
  Status Violation(Peer& peer, StatusCode code, const std::string& what);
  transport::ChunkVerdict AddGradient(Peer& peer, Transfer& transfer, bool high, uint32_t chunk,
                                      bool repaired);
  // For a chunk that must not count, now or later. Refused, it would be owed by policies that repay, and come
  // again with the next gradient.
  transport::ChunkVerdict TakeAndDrop();
  // False, and everybody concerned knows, when the values may not be added.
  bool PassesGuard(const Peer& peer, const Transfer& transfer, bool high, uint32_t chunk,
                   std::span<const float> values);
  transport::CloseRuleInput CloseInput(const Peer& peer, const Entry& entry, const Transfer& transfer,
                                       const transport::IncomingWindow& window) const;
  void Close(Peer& peer, transport::WindowKey key, wire::CloseReason reason,
             const transport::IncomingWindow& window);
  void CloseGradient(Peer& peer, const Transfer& transfer, wire::CloseReason reason,
                     const transport::IncomingWindow& window);
  void FinaliseReady(Entry& entry, const std::vector<uint32_t>& ready);
  void FinishRoundIfComplete(Entry& entry);
  void AnswerHeld(Entry& entry);
  void AnswerPulls(Entry& entry);
  bool MayPin(const Parameters& parameters) const;
  // Snapshots may be free again.
  void AnswerHeldPulls();
  void ForgetPeer(Entry& entry, uint32_t rank);
  void ExcludeFromRound(Entry& entry, uint32_t rank);
  // What a worker that is not waited for has lost of the round in progress: all of it.
  void CountAsLost(Entry& entry, uint32_t rank);
  void LeaveStragglersOut(Entry& entry);
  Instant HardDeadline(const Entry& entry, uint32_t rank) const;
  void CheckAt(Instant when) { next_check_ = std::min(next_check_, when); }

  ServerSettings settings_;
  const Membership* membership_;
  RoundEngineHost* host_;
  uint16_t symbol_bytes_;
  ParameterStore store_;
  MemoryBudget memory_;
  codec::LossPolicySpec policy_;
  ResultSender results_;
  std::vector<std::unique_ptr<Entry>> tensors_;  // by key
  std::vector<float> scratch_;                   // one decoded chunk
  bool pulls_wait_ = false;                      // for memory
  std::vector<uint32_t> waiting_pulls_;          // by rank, of all tensors
  std::vector<uint32_t> held_declares_;          // ditto
  Instant now_;
  Instant next_check_ = Instant::Infinite();
  EngineStats stats_;
};

}  // namespace longhaul::server
