// Declarations of tensors: what a worker may declare, the memory it takes, and where its version 0 comes
// from.
//
//   first declaration  -> memory reserved, tensor created, the members of this moment take part
//   has_initial        -> the first worker that offers values is asked to send them
//   declared by all members, none offered -> version 0 is zeros
//
// A worker that joined during a round is answered when that round is finished; answered earlier, it would
// push too early. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "server/round/round_host.h"
#include "server/round/tensor_job.h"
#include "server/settings.h"
#include "server/tensor/memory_budget.h"
#include "server/tensor/parameter_store.h"

namespace longhaul::server {

class Declarations {
 public:
  static constexpr uint32_t kMaxPostponed = 4096;  // per worker, of all tensors

  // chunk_elements: of float32, the job's. All pointers must outlive this.
  Declarations(const ServerSettings& settings, uint32_t chunk_elements, const Membership* membership,
               RoundEngineHost* host, TensorJobs* jobs);

  // Answers now, or postpones the answer. Null: refused.
  TensorJob* OnDeclare(Peer& peer, const control::Declare& declare);
  // True: every member has declared the tensor and none has values, so they are to be zeros.
  bool StartsAsZeros(const TensorJob& job) const;
  // The round that the postponed answers waited for is finished.
  void AnswerPostponed(TensorJob& job);
  // The rank's worker is gone.
  void Forget(TensorJob& job, uint32_t rank);

  const ParameterStore& store() const { return store_; }
  const MemoryBudget& memory() const { return memory_; }

 private:
  Status Check(const control::Declare& declare, const codec::OptimizerSpec& optimizer) const;
  Status TakeMemory(const TensorSpec& spec);
  TensorJob& Add(Parameters* parameters);
  bool AsksForInitial(TensorJob& job, const Peer& peer, bool has_initial);

  ServerSettings settings_;
  const Membership* membership_;
  RoundEngineHost* host_;
  TensorJobs* jobs_;
  ParameterStore store_;
  MemoryBudget memory_;
  std::vector<uint32_t> postponed_;  // by rank, of all tensors
};

}  // namespace longhaul::server
