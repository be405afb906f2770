// One tensor in training: its values, the sum and the state of the round in progress, and what turns the one
// into the other. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/zeroed_array.h"
#include "codec/policy/filler.h"
#include "codec/policy/optimizer.h"
#include "server/tensor/aggregator.h"
#include "server/tensor/job_image.h"
#include "server/tensor/parameter_store.h"
#include "server/tensor/rounds.h"

namespace longhaul::server {

class Tensor {
 public:
  // How a worker's window of this round ended.
  struct WindowOutcome {
    float weight = 1;
    uint32_t low_count = 0;
    uint32_t low_received = 0;  // of them, those that count
    uint32_t high_missing = 0;
  };

  // plugin: of Aggregation::kPlugin. Throws std::bad_alloc.
  Tensor(Parameters* parameters, uint32_t ranks, const JobSpec& spec,
         Aggregator::Order order = Aggregator::Order::kArrival, const longhaul_aggregation* plugin = nullptr);

  Parameters& parameters() { return *parameters_; }
  const Parameters& parameters() const { return *parameters_; }
  Aggregator& aggregator() { return aggregator_; }
  Rounds& rounds() { return rounds_; }
  const Rounds& rounds() const { return rounds_; }
  uint32_t key() const { return parameters_->key(); }
  // In which gradients arrive and become final.
  const codec::ChunkGeometry& geometry() const { return parameters_->gradient_geometry(); }
  uint32_t chunks() const { return geometry().chunks(); }
  bool aggregate_only() const { return parameters_->spec().optimizer.aggregates(); }

  // Where staleness is not 0 every push is a step (Rounds).
  bool asynchronous() const { return rounds_.asynchronous(); }

  // No chunk becomes final before version 0 is there: it comes, or, asynchronous, others may have it to
  // offer.
  bool WaitsForValues() const {
    const Parameters::Initial initial = parameters_->initial();
    return initial == Parameters::Initial::kAwaited ||
           (asynchronous() && initial != Parameters::Initial::kReady);
  }

  // Adds a contribution with what it counts for by the loss policy. As Aggregator::Add; asynchronous, to the
  // next step where this one has the chunk's value or another push of the rank already, and false where the
  // push has it, or that step as well.
  bool Add(uint32_t rank, bool high, uint32_t chunk, std::span<const float> values, float weight);
  // --- Asynchronous only ---
  // The rank's push begins: none of its chunks are in.
  void BeginPush(uint32_t rank) { pushed_[rank] = transport::ChunkBitmap(chunks()); }
  // The step that has the last chunks of the rank's push that are in; the one before the step in progress
  // where none are left for that. The first step is made whatever came.
  uint64_t StepOfPush(uint32_t rank) const;
  // Of the rank's push, the chunks that are in steps up to the one in progress.
  transport::ChunkBitmap CountedOfPush(uint32_t rank) const;
  // What all members weigh: by this a step of some of them is measured.
  void SetTotalWeight(double weight) { total_weight_ = weight; }
  // --- ---
  // The chunks of the rank's window that are in.
  const transport::ChunkBitmap& pushed(uint32_t rank) const {
    return asynchronous() ? pushed_[rank] : aggregator_.contributed(rank);
  }
  // The factor, beside its weight, that such a contribution counts with.
  float ArrivalScale(uint32_t rank, bool high) const { return filler_->ArrivalScale(rank, high); }
  // As Rounds::OnContribution; after Add.
  bool OnContribution(uint32_t rank, uint32_t chunk) {
    return rounds_.OnContribution(rank, chunk, aggregator_.contributions());
  }
  // As Rounds::Sweep. Each chunk is to be finalised before the next call.
  void Sweep(size_t max, std::vector<uint32_t>* ready) {
    rounds_.Sweep(aggregator_.contributions(), max, ready);
  }
  // A worker's window is over: decides whether its losses are tolerated or filled. Above the bubble-filling
  // threshold is a window that lost more of its low class, or anything of its high class. A worker that is
  // gone has no outcome: its missing contributions are neither tolerated nor filled.
  void OnWindowOver(uint32_t rank, const WindowOutcome& outcome);
  // As Parameters::BeginWriting; for the optimizer's state too.
  Status BeginWriting();
  // Computes the chunk's value for this round: mean by the loss policy, then the optimizer; the round's tally
  // says what was tolerated and filled. REQUIRES: the parameters are ready, no rank is awaited for it.
  // Returns the contributions that were filled.
  uint32_t Finalise(uint32_t chunk);
  // kAborted names the optimizer whose step has failed, or the plug-in's aggregation: the chunk that was
  // finalised last has no value. It gave a code, or values that are not finite though the old ones were. What
  // the guard lets pass has a finite sum, so that is the step's doing.
  Status LastStep() const;
  // The round is finished: on to the next. now: as Rounds::Next.
  void NextRound(Instant now = {});

  // The values are there, and no chunk of the round in progress is final: an image is of one round.
  bool AtRest() const {
    return parameters_->initial() == Parameters::Initial::kReady && rounds_.final_order().empty();
  }
  // What is to outlive the server. REQUIRES: AtRest().
  TensorImage Image() const;
  // As it will be after NextRound(). REQUIRES: every chunk is final.
  TensorImage NextImage() const;

  // The round's last final chunk is not said to anybody: the round is not on the disk yet.
  void WithholdLast() { withheld_ = true; }
  void ReleaseLast() { withheld_ = false; }
  bool withheld() const { return withheld_; }
  // Of rounds().final_order(), those that may leave.
  size_t announced() const { return rounds_.final_order().size() - (withheld_ ? 1 : 0); }
  // Goes on from there; the optimizer counts its steps on. REQUIRES: of this count and optimizer state, as
  // Parameters::Restore.
  void Restore(TensorImage image);

  // A shift epoch begins with members of this total weight (codec/policy/shift.h). Between rounds only: to be
  // called with the first members, and before the first round after a member left, joined or was replaced.
  void BeginEpoch(double total_weight);
  // 0 for the first, then one more each time.
  uint32_t shift_epoch() const { return epochs_ == 0 ? 0 : epochs_ - 1; }
  // C of the epoch; empty but for policy shift. A copy.
  std::vector<float> shift_sum() const { return filler_->shift_sum(); }

 private:
  struct LostWindow {
    bool over = false;
    bool above_threshold = false;
    float weight = 0;
  };

  Parameters* parameters_;
  JobSpec spec_;
  std::unique_ptr<codec::Filler> filler_;
  Aggregator aggregator_;
  Rounds rounds_;
  std::unique_ptr<codec::Optimizer> optimizer_;
  std::vector<LostWindow> windows_;  // by rank, of this round
  std::vector<float> mean_;          // of one chunk
  uint32_t epochs_ = 0;
  // Asynchronous only.
  std::optional<Aggregator> ahead_;             // of the next step
  std::vector<transport::ChunkBitmap> pushed_;  // by rank
  double total_weight_ = 0;
  ZeroedArray<double> steps_;   // by chunk: shares of the steps that were made, summed
  uint32_t last_chunk_ = 0;     // that was finalised
  int32_t step_code_ = 0;       // of its step
  uint64_t rounds_before_ = 0;  // of earlier jobs, by the image that this goes on from
  bool withheld_ = false;
};

}  // namespace longhaul::server
