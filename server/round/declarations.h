// Declarations of tensors: what a worker may declare, the memory it takes, and where its version 0 comes
// from.
//
//   first declaration  -> memory reserved, tensor created, the members of this moment take part
//   has_initial        -> the first worker that offers values is asked to send them
//   declared by all members, none offered -> version 0 is zeros
//   an earlier server has kept it         -> version 0 is that, and offers are not taken
//
// A worker that joined during a round is answered when that round is finished; answered earlier, it would
// push too early.
//
// No member takes the model for itself. What a tensor costs is the largest of its shares of what a job may
// have (tensors, elements, memory), and it is charged to the member that declared it first, until more than
// half of the members have declared it. A declaration that would make a member's charges exceed its part, one
// of `world_size` and a sixteenth at least, waits until they have, or until it fits. So in a job whose
// workers declare the same tensors a worker that is ahead of the others waits for them, and c members that
// declare others take c parts of the whole at most. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/round/held_declarations.h"
#include "server/round/round_host.h"
#include "server/round/tensor_job.h"
#include "server/settings.h"
#include "server/tensor/memory_budget.h"
#include "server/tensor/parameter_store.h"

namespace longhaul::server {

class Declarations {
 public:
  static constexpr uint32_t kMaxPostponed = 4096;  // per worker, of all tensors
  // Of what a job may have: with 1,024 workers a tensor of one element costs a 260th.
  static constexpr double kLeastPart = 1.0 / 16;
  using Declared = std::vector<TensorJob*>;  // that some worker has declared just now

  // chunk_elements: of float32, the job's. All pointers must outlive this; images may be null.
  Declarations(const ServerSettings& settings, uint32_t chunk_elements, const Membership* membership,
               RoundEngineHost* host, TensorJobs* jobs, ImageKeeper* images);

  // Answers now, or postpones the answer.
  Declared OnDeclare(Peer& peer, const control::Declare& declare, Instant now);
  // The worker's call waits no longer and ends, saying for whom it has waited. False: it has ended.
  bool GiveUp(Peer& peer, uint32_t request);
  // True: every member has declared the tensor and none has values, so they are to be zeros.
  bool StartsAsZeros(const TensorJob& job) const;
  // The round that the postponed answers waited for is finished.
  void AnswerPostponed(TensorJob& job);
  // The rank's worker is gone.
  void Forget(TensorJob& job, uint32_t rank);
  Declared ForgetHeld(uint32_t rank);

  const ParameterStore& store() const { return store_; }
  const MemoryBudget& memory() const { return memory_; }
  // Those that had to wait for others to say the same, since they were beyond their member's part.
  uint64_t held_back() const { return held_back_; }
  // The declaration that waits longest for others to say the same, if any.
  std::optional<Wait> LongestWait() const;

 private:
  // consistency: the job's, as the declaration has it.
  Status Check(const control::Declare& declare, const codec::OptimizerSpec& optimizer,
               const JobSpec& consistency) const;
  bool Majority(size_t members) const { return members * 2 > membership_->joined(); }
  double Cost(const TensorSpec& spec) const;
  double Part() const;
  // What all that is held and may be taken by now becomes; more may be after it.
  void AdmitHeld(Declared* declared);
  void Create(const HeldDeclarations::Held& held, Declared* declared);
  // False: the answer is a refusal.
  bool Accept(TensorJob& job, const HeldDeclarations::Request& request);
  void Refuse(const HeldDeclarations::Request& request, const Status& why);
  Wait HeldWait(const HeldDeclarations::Held& held) const;
  // "; worker rank 2 (...) holds 25.0 % with tensors that most have not declared", or nothing.
  std::string GreediestBut(uint32_t rank) const;
  Status CheckBlocks(const TensorSpec& spec) const;
  // kSettingsMismatch: what an earlier server has kept of it is of another shape.
  Status CheckImage(const TensorSpec& spec) const;
  // kResourceExhausted names the tensor, what it needs and what there is. REQUIRES: it is not there yet.
  Result<TensorJob*> Make(const TensorSpec& spec);
  TensorJob& Add(Parameters* parameters);
  bool AsksForInitial(TensorJob& job, uint32_t rank, bool has_initial);

  ServerSettings settings_;
  const Membership* membership_;
  RoundEngineHost* host_;
  TensorJobs* jobs_;
  ImageKeeper* images_;
  uint32_t chunk_elements_;
  ParameterStore store_;
  MemoryBudget memory_;
  HeldDeclarations held_;
  Instant now_;  // of the last declaration
  uint64_t held_back_ = 0;
  std::vector<uint32_t> postponed_;  // by rank, of all tensors
  std::vector<double> charged_;      // by rank: parts of what a job may have
};

}  // namespace longhaul::server
