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
#include "server/settings.h"
#include "server/tensor/clocks.h"
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
  uint32_t own_pushes = 0;                 // of this connection, that are to have counted
  uint64_t least_clock = 0;                // that every member is to have
  std::optional<Instant> held_since = {};  // for memory, or for this worker's pulls before; counted once
};

// A finished round's report that is not sent yet: what it says takes a walk over the tensor.
struct PendingReport {
  control::ControlMessage message;
  uint64_t hashed = 0;  // elements of the finished values, and their hash so far
  uint32_t hash = 0;
  uint32_t next_rank = 0;
  std::vector<bool> to = {};  // by rank; empty: all
};

// A push whose window is over, where staleness is not 0. It has counted when the step of its last chunks is
// over. Its acknowledgement leaves when its worker may go on (Clocks).
struct FinishedPush {
  enum class State : uint8_t {
    kOver,    // its step has not begun, or is not closed
    kInStep,  // it closes the step in progress
    kHeld,    // it has counted, and its worker may not go on
  };
  State state = State::kOver;
  uint32_t rank = 0;
  uint64_t step = 0;
  Tensor::WindowOutcome outcome = {};
  control::ControlMessage taken = {};
  Instant held_since = {};
};

// The window that has brought the initial values. It is closed when they are on the disk, where there is a
// round log: a worker that has let go of them need not offer them again.
struct InitialWindow {
  uint32_t rank = 0;
  transport::WindowKey key = {};
  wire::CloseReason reason = wire::CloseReason::kComplete;
};

struct TensorJob {
  // Throws std::bad_alloc.
  TensorJob(Parameters* parameters, uint32_t ranks, const ServerSettings& spec, Aggregator::Order order,
            double norm_guard, Stragglers waiting, Patience waiting_for_the_idle, WeightLedger ledger)
      : tensor(parameters, ranks, spec, order, spec.aggregation_rule),
        guard(parameters->gradient_geometry().chunks(), ranks, norm_guard, codec::Repays(spec.policy)),
        epochs(spec.policy == LossPolicy::kShift, ranks),
        stragglers(std::move(waiting)),
        patience(std::move(waiting_for_the_idle)),
        weights(std::move(ledger)),
        clocks(parameters->spec().staleness, ranks),
        own_pushes(ranks),
        push_session(ranks),
        answered_at(ranks),
        left_out_of(ranks),
        missed(ranks),
        window_times(ranks),
        declared(ranks, false),
        late(ranks, false),
        pushed_here(ranks, false),
        counted(ranks),
        window_sessions(ranks) {}

  // Another process of the rank has chunks in the round in progress: those of this session would be
  // acknowledged and not counted. Steps take both.
  bool HasOfAnother(uint32_t rank, uint64_t session) const {
    return !tensor.asynchronous() && tensor.rounds().participation(rank) == Rounds::Participation::kOpen &&
           tensor.pushed(rank).count() > 0 && window_sessions[rank] != session;
  }

  bool HasValues() const {
    return tensor.aggregate_only() || tensor.parameters().initial() == Parameters::Initial::kReady;
  }
  // Initial values are on their way here.
  bool AwaitsInitial() const {
    return tensor.parameters().initial() == Parameters::Initial::kAwaited && initial_record == 0;
  }
  // Since when the round in progress waits. REQUIRES: it has begun.
  Instant since() const { return std::max(tensor.rounds().begun_at(), values_since); }
  // When a round whose quorum is in stops waiting for the others; infinite: it is not in. REQUIRES: as since.
  Instant GraceEnds() const {
    if (!quorum_at) return Instant::Infinite();
    const Duration took = *quorum_at > since() ? *quorum_at - since() : Duration(0);
    return *quorum_at + stragglers.Grace(std::max(tensor.rounds().Quorum(), 1u), took);
  }
  // Until it pushes, a member weighs what it joined with.
  void Expect(const Membership& membership, uint32_t rank) {
    weights.Expect(rank,
                   tensor.aggregator().robust() ? 1 : static_cast<double>(membership.member(rank).weight));
  }
  // Begins the first round, or a shift epoch, with the members of this moment and the weights that they
  // joined with.
  void BeginEpoch(const Membership& membership) {
    const std::vector<bool> members = membership.Joined();
    for (uint32_t rank = 0; rank < members.size(); ++rank) Expect(membership, rank);
    weights.Begin(members);
    double weight = 0;
    for (uint32_t rank = 0; rank < members.size(); ++rank) {
      if (members[rank]) weight += static_cast<double>(weights.Expected(rank));
    }
    epochs.Begin(members);
    tensor.BeginEpoch(weight);
  }
  // Asynchronous: what the members of this moment weigh.
  void Weigh(const Membership& membership) {
    double weight = 0;
    for (uint32_t rank = 0; rank < membership.world_size(); ++rank) {
      if (membership.IsJoined(rank)) weight += static_cast<double>(weights.Expected(rank));
    }
    tensor.SetTotalWeight(weight);
  }
  // The same when a newcomer joins. Under policy shift the newcomer's weight counts from the next epoch on.
  void WeighWith(uint32_t newcomer, const Membership& membership, LossPolicy policy) {
    if (policy != LossPolicy::kShift) Expect(membership, newcomer);
    Weigh(membership);
  }
  // The round in progress goes on without so many chunks of the rank, which is no member any more. all: what
  // is counted so of its rounds.
  void Miss(uint32_t rank, uint32_t chunks, uint64_t* all) {
    missed[rank] = {tensor.rounds().number(), chunks};
    tensor.rounds().tally().lost_chunks += chunks;
    *all += chunks;
  }
  // The rank is a member, maybe again. True: of the round in progress, and nothing of it is missed yet. Under
  // policy shift a newcomer counts from the next epoch on.
  bool Enter(uint32_t rank, LossPolicy policy, uint64_t* all) {
    Rounds& rounds = tensor.rounds();
    if (!rounds.OnMemberJoined(rank, policy == LossPolicy::kShift || tensor.pushed(rank).count() > 0))
      return false;
    const auto [round, chunks] = std::exchange(missed[rank], {});
    if (tensor.asynchronous() || round != rounds.number()) return true;
    rounds.tally().lost_chunks -= chunks;
    *all -= chunks;
    return true;
  }
  // The round in progress is complete: notes, by rank, which chunks of its push count in it.
  void NoteCounted() {
    for (uint32_t rank = 0; rank < counted.size(); ++rank) {
      const transport::ChunkBitmap& contributed = tensor.aggregator().contributed(rank);
      const transport::ChunkBitmap of_push = tensor.asynchronous() ? tensor.CountedOfPush(rank) : contributed;
      // Chunks of a predecessor are of no push that is under way.
      if (contributed.count() == 0 || of_push.count() == 0) continue;
      // Not of the member of now, which may be the successor of the one that pushed.
      counted[rank] = {
          .session = window_sessions[rank], .round = tensor.rounds().number(), .clock = clocks.of(rank) + 1};
      if (of_push.count() < tensor.chunks()) counted[rank].chunks = of_push.bytes();
    }
  }
  // Of the rank's push that has counted last.
  transport::ChunkBitmap CountedChunks(uint32_t rank) const {
    transport::ChunkBitmap all(tensor.chunks());
    if (counted[rank].chunks.size() == all.bytes().size()) return {all.size(), counted[rank].chunks};
    all.SetAll();
    return all;
  }
  // Of the session that a rank has, and which sessions had it before.
  std::vector<Counted> CountedBy(const Fences& fences) const {
    std::vector<Counted> all = counted;
    uint64_t slowest = UINT64_MAX;
    for (uint32_t rank = 0; rank < all.size(); ++rank) {
      all[rank].replaced = fences.replaced(rank);
      all[rank].clock = std::max(all[rank].clock, clocks.of(rank));
      if (clocks.IsMember(rank)) slowest = std::min(slowest, all[rank].clock);
    }
    // One that is away comes back where the slowest is, to the next server, too.
    for (uint32_t rank = 0; rank < all.size() && slowest != UINT64_MAX; ++rank) {
      if (!clocks.IsMember(rank)) all[rank].clock = slowest;
    }
    return all;
  }
  // The rank's push is on its way, or is not acknowledged yet.
  bool IsPushing(uint32_t rank) const {
    return tensor.rounds().participation(rank) == Rounds::Participation::kOpen ||
           std::ranges::count(finished, rank, &FinishedPush::rank) > 0;
  }

  Tensor tensor;
  ContributionGuard guard;
  ShiftEpochs epochs;
  Stragglers stragglers;
  Patience patience;
  WeightLedger weights;
  Clocks clocks;
  std::vector<FinishedPush> finished;  // the oldest first
  std::vector<uint32_t> own_pushes;    // by rank: of its connection, that its worker knows to have counted
  std::vector<uint64_t>
      push_session;  // by rank: the session of the push in Tensor::pushed; 0: none is under way
  std::vector<Instant> answered_at;  // by rank: when its turn began
  std::optional<Instant> quorum_at;  // when the quorum of the round in progress was in
  Instant turn;                      // when the round before was finished, or version 0 was there
  std::vector<Instant> left_out_of;  // by rank, of one that lags: the turn that it has missed
  std::vector<std::pair<uint64_t, uint32_t>> missed;  // by rank: Miss
  std::vector<CloseTimes> window_times;               // by rank: from a window's opening to its close
  std::vector<bool> declared;                         // by rank
  Instant values_since;                               // when version 0 was there
  std::vector<bool> late;                             // by rank: takes part from the next round
  std::vector<PostponedDeclare> postponed_declares;   // answered when the round in progress is finished
  std::vector<PendingPull> pulls;
  uint32_t first_declarer = 0;  // rank
  double charged = 0;           // its share of what a job may have (server/round/declarations.h)
  std::optional<PendingReport> report;
  bool restored = false;  // just now, from an image
  // What counted of the sessions lately, and whose window was the last of each rank in the round in progress.
  std::vector<bool> pushed_here;          // by rank: its connection has brought a push
  std::vector<Counted> counted;           // by rank
  std::vector<uint64_t> window_sessions;  // likewise
  // With a round log: the record of the round in progress that is being written (0: none), and the
  // answers to pushes without a result, which leave when it is written.
  uint64_t record = 0;
  // The record of version 0 that is being written (0: none), and the window that has brought it, unless its
  // connection is gone.
  uint64_t initial_record = 0;
  std::optional<InitialWindow> initial_window;
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
    if (!rounds.begun() || !job.HasValues() || rounds.asynchronous()) return Instant::Infinite();
    const uint32_t done = rounds.Count(Rounds::Participation::kClosed);
    return std::min({job.stragglers.Deadline(job.since(), rtt, done, members), job.GraceEnds(),
                     job.patience.Deadline(rank, job.turn, job.since(), bytes_)});
  }
  // Of one copy of the model.
  uint64_t bytes() const { return bytes_; }
  size_t size() const { return jobs_.size(); }
  auto begin() const { return jobs_.begin(); }
  auto end() const { return jobs_.end(); }

 private:
  std::vector<std::unique_ptr<TensorJob>> jobs_;
  uint64_t bytes_ = 0;  // of one copy of the model
};

}  // namespace longhaul::server
