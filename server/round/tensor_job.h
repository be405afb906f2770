// A tensor of the running job, and what is kept about its workers from round to round.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "proto/control_codec.h"
#include "server/member/membership.h"
#include "server/member/weight_ledger.h"
#include "server/tensor/contribution_guard.h"
#include "server/tensor/patience.h"
#include "server/tensor/shift_epochs.h"
#include "server/tensor/stragglers.h"
#include "server/tensor/tensor.h"

namespace longhaul::server {

struct PostponedDeclare {
  uint32_t rank = 0;
  control::ControlMessage answer;
};

struct PendingPull {
  uint32_t rank = 0;
  uint32_t request = 0;
  uint64_t min_round = 0;
  std::optional<Instant> held_since = {};  // for memory, or for this worker's pulls before; counted once
};

// A finished round's report that is not sent yet: what it says takes a walk over the tensor.
struct PendingReport {
  control::ControlMessage message;
  uint64_t hashed = 0;  // elements of the finished values, and their hash so far
  uint32_t hash = 0;
  uint32_t next_rank = 0;
};

struct TensorJob {
  // Throws std::bad_alloc.
  TensorJob(Parameters* parameters, uint32_t ranks, const JobSpec& spec, Aggregator::Order order,
            double norm_guard, Stragglers waiting, Patience waiting_for_the_idle, WeightLedger ledger)
      : tensor(parameters, ranks, spec, order),
        guard(parameters->gradient_geometry().chunks(), ranks, norm_guard, codec::Repays(spec.policy)),
        epochs(spec.policy == LossPolicy::kShift, ranks),
        stragglers(std::move(waiting)),
        patience(std::move(waiting_for_the_idle)),
        weights(std::move(ledger)),
        left_out_of(ranks),
        window_times(ranks),
        declared(ranks, false),
        late(ranks, false),
        counted(ranks),
        window_sessions(ranks) {}

  bool HasValues() const {
    return tensor.aggregate_only() || tensor.parameters().initial() == Parameters::Initial::kReady;
  }
  // Since when the round in progress waits. REQUIRES: it has begun.
  Instant since() const { return std::max(tensor.rounds().begun_at(), values_since); }
  // Begins the first round, or a shift epoch, with the members of this moment and the weights that they
  // joined with.
  void BeginEpoch(const Membership& membership) {
    const std::vector<bool> members = membership.Joined();
    for (uint32_t rank = 0; rank < members.size(); ++rank) {
      weights.Expect(rank,
                     tensor.aggregator().robust() ? 1 : static_cast<double>(membership.member(rank).weight));
    }
    weights.Begin(members);
    double weight = 0;
    for (uint32_t rank = 0; rank < members.size(); ++rank) {
      if (members[rank]) weight += static_cast<double>(weights.Expected(rank));
    }
    epochs.Begin(members);
    tensor.BeginEpoch(weight);
  }

  Tensor tensor;
  ContributionGuard guard;
  ShiftEpochs epochs;
  Stragglers stragglers;
  Patience patience;
  WeightLedger weights;
  Instant turn;                          // when the round before was finished, or version 0 was there
  std::vector<Instant> left_out_of;      // by rank, of one that lags: the turn that it has missed
  std::vector<CloseTimes> window_times;  // by rank: from a window's opening to its close
  std::vector<bool> declared;            // by rank
  Instant values_since;                  // when version 0 was there
  std::vector<bool> late;                // by rank: takes part from the next round
  std::vector<PostponedDeclare> postponed_declares;  // answered when the round in progress is finished
  std::vector<PendingPull> pulls;
  uint32_t first_declarer = 0;  // rank
  double charged = 0;           // its share of what a job may have (server/round/declarations.h)
  std::optional<PendingReport> report;
  bool restored = false;  // just now, from an image
  // What counted of the sessions lately, and whose window was the last of each rank in the round in progress.
  std::vector<Counted> counted;           // by rank
  std::vector<uint64_t> window_sessions;  // likewise
  // With a round log: the record of the round in progress that is being written (0: none), and the
  // answers to pushes without a result, which leave when it is written.
  uint64_t record = 0;
  std::vector<std::pair<uint32_t, control::ControlMessage>> untold;  // by rank
};

// The job's tensors by key.
class TensorJobs {
 public:
  TensorJob* Find(uint32_t key) { return key < jobs_.size() ? jobs_[key].get() : nullptr; }
  TensorJob& Of(const Tensor& tensor) { return *jobs_[tensor.key()]; }
  TensorJob& Add(std::unique_ptr<TensorJob> job) {
    bytes_ += job->tensor.parameters().spec().count * sizeof(float);
    return *jobs_.emplace_back(std::move(job));
  }
  // When the round in progress stops waiting for a worker at this RTT. The first round waits for version 0 as
  // long as it takes: a worker that has not declared the tensor yet may have the values.
  Instant HardDeadline(const TensorJob& job, uint32_t rank, Duration rtt, uint32_t members) const {
    const Rounds& rounds = job.tensor.rounds();
    if (!rounds.begun() || !job.HasValues()) return Instant::Infinite();
    const uint32_t done = rounds.Count(Rounds::Participation::kClosed);
    return std::min(job.stragglers.Deadline(job.since(), rtt, done, members),
                    job.patience.Deadline(rank, job.turn, job.since(), bytes_));
  }
  size_t size() const { return jobs_.size(); }
  auto begin() const { return jobs_.begin(); }
  auto end() const { return jobs_.end(); }

 private:
  std::vector<std::unique_ptr<TensorJob>> jobs_;
  uint64_t bytes_ = 0;  // of one copy of the model
};

}  // namespace longhaul::server
