// When one tensor's shift epochs change, and whose contributions belong to the epoch in force
// (codec/policy/shift.h).
//
// The server knows only the sum of the workers' shifts. When a worker leaves, joins or is replaced, its part
// of that sum belongs to no worker: all begin again from zero, in a new epoch. All workers must do so in the
// same round. So the change is announced with the results of one whole round, which every worker has before
// it pushes the next one:
//
//   round r: a member changes   r + 1: the change is announced   r + 2: the new epoch is in force
//
// In between the old epoch goes on. Its sum still has the part of a worker that is gone, which then counts as
// what it usually sent; a worker that is new has no part, and what it sends is refused until its epoch
// begins. Knows no values. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

namespace longhaul::server {

class ShiftEpochs {
 public:
  // used: false for policies without epochs; then everything is taken and nothing ever changes.
  ShiftEpochs(bool used, uint32_t ranks) : used_(used), belongs_(ranks, false) {}

  // The first epoch, or the one that OnRoundBegins asked for, begins with these members, by rank.
  void Begin(const std::vector<bool>& members);
  // Of a job that had come to `epoch` in another process. REQUIRES: the first epoch has begun, no other.
  void GoOnAfter(uint32_t epoch) {
    if (used_) epoch_ = epoch + 1;
  }
  // The rank left, joined or was replaced.
  void OnMemberChanged(uint32_t rank);
  // Round `number` is next. True: a new epoch begins with it, call Begin.
  bool OnRoundBegins(uint64_t number);

  uint32_t epoch() const { return epoch_; }
  // From which round on the next epoch is in force; 0: no change is announced.
  uint64_t change_round() const { return change_round_; }
  // Whether a contribution of this rank, made in this epoch, counts in the epoch in force.
  bool Takes(uint32_t rank, uint32_t epoch) const { return !used_ || (epoch == epoch_ && belongs_[rank]); }

 private:
  bool used_;
  bool begun_ = false;
  bool changed_ = false;  // members have changed since the last announcement
  uint32_t epoch_ = 0;
  uint64_t change_round_ = 0;
  std::vector<bool> belongs_;  // by rank: was a member when the epoch began, and is still the same worker
};

}  // namespace longhaul::server
