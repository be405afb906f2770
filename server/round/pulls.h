// Pulls of current values: which are answered now, which wait for a round, and which wait for memory.
//
// An answer holds a snapshot of the parameters until the worker has it. Workers that pull the same version
// share one. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "server/results/result_sender.h"
#include "server/round/round_host.h"
#include "server/round/tensor_job.h"
#include "server/tensor/memory_budget.h"
#include "server/tensor/parameter_store.h"

namespace longhaul::server {

class Pulls {
 public:
  // Per worker: of one tensor, and answered but not finished.
  static constexpr size_t kMaxPending = 64;
  static constexpr uint32_t kMaxWaiting = 4096;  // per worker, of all tensors
  // Snapshots that answers hold, in models (4 bytes x elements of all tensors). A pull that needs one more
  // waits until a snapshot is free.
  static constexpr uint64_t kMaxPinnedModels = MemoryBudget::kPinnedModels;
  // Of one tensor, per worker: answered but not finished; further ones wait. Each may hold a snapshot, so
  // that fewer than kMaxPinnedModels workers cannot hold all of them.
  static constexpr size_t kMaxOfTensor = MemoryBudget::kPullsOfTensor;

  // All pointers must outlive this.
  Pulls(uint32_t ranks, const ParameterStore* store, RoundEngineHost* host, ResultSender* results,
        EngineStats* stats)
      : store_(store), host_(host), results_(results), stats_(stats), waiting_(ranks, 0) {}

  // job: null when no tensor has the key.
  void OnRequest(Instant now, Peer& peer, TensorJob* job, const control::PullRequest& pull);
  // The tensor has a new version.
  void Answer(Instant now, TensorJob& job);
  // Snapshots may be free again.
  void AnswerPostponed(Instant now, TensorJobs& jobs);
  // The pull waits no longer. None: the tensor has no such one.
  std::optional<PendingPull> GiveUp(TensorJob& job, const Peer& peer, uint32_t request);
  void Refuse(Peer& peer, uint32_t request, const Status& why);
  // The rank's worker is gone.
  void Forget(TensorJob& job, uint32_t rank);
  // For whose unfinished pulls that one is held. REQUIRES: held_since.
  Wait WaitOf(const TensorJob& job, const PendingPull& pull) const;
  // Of pulls that other workers' pulls hold up, the one that waits longest.
  std::optional<Wait> LongestWait(const TensorJobs& jobs) const;

 private:
  // False: it has to wait.
  bool TryAnswer(Instant now, TensorJob& job, PendingPull& pull);
  bool SnapshotFitsBudget(const Parameters& parameters) const;

  const ParameterStore* store_;
  RoundEngineHost* host_;
  ResultSender* results_;
  EngineStats* stats_;
  bool postponed_ = false;         // some pull waits for memory
  std::vector<uint32_t> waiting_;  // by rank, of all tensors
};

}  // namespace longhaul::server
