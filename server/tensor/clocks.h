// How many pushes of each member have counted in one tensor, and which may make another one: the clocks of
// stale synchronous parallel (Ho et al. 2013). A member may go on while its clock is at most `staleness`
// ahead of the slowest one, always without a bound (ASP). A member that is gone holds no one; one that
// comes begins where the slowest is, so that it neither holds the others nor is held. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace longhaul::server {

class Clocks {
 public:
  static constexpr int32_t kNoBound = -1;

  // staleness: JobSpec's.
  Clocks(int32_t staleness, uint32_t ranks) : staleness_(staleness), of_(ranks), members_(ranks, false) {}

  void OnMemberJoined(uint32_t rank);
  void OnMemberGone(uint32_t rank) { members_[rank] = false; }
  // Another process goes on with the rank's clock.
  void OnMemberReplaced(uint32_t rank) { members_[rank] = true; }
  // A push of the rank has counted.
  void Advance(uint32_t rank) { ++of_[rank]; }
  // Goes on from there.
  void Restore(uint32_t rank, uint64_t clock) { of_[rank] = clock; }

  uint64_t of(uint32_t rank) const { return of_[rank]; }
  uint32_t members() const { return static_cast<uint32_t>(std::ranges::count(members_, true)); }
  bool IsMember(uint32_t rank) const { return members_[rank]; }
  // Of the members; 0 without one.
  uint64_t Slowest() const;
  uint64_t Fastest() const;
  bool MayGoOn(uint32_t rank) const {
    return staleness_ == kNoBound || of_[rank] <= Slowest() + static_cast<uint64_t>(staleness_);
  }
  // The members whose clock is below this.
  std::vector<uint32_t> Behind(uint64_t clock) const;

 private:
  int32_t staleness_;
  std::vector<uint64_t> of_;  // by rank
  std::vector<bool> members_;
};

inline void Clocks::OnMemberJoined(uint32_t rank) {
  LH_CHECK(!members_[rank]);
  if (members() > 0) of_[rank] = Slowest();
  members_[rank] = true;
}

inline uint64_t Clocks::Slowest() const {
  uint64_t slowest = UINT64_MAX;
  for (size_t rank = 0; rank < of_.size(); ++rank) {
    if (members_[rank]) slowest = std::min(slowest, of_[rank]);
  }
  return slowest == UINT64_MAX ? 0 : slowest;
}

inline uint64_t Clocks::Fastest() const {
  uint64_t fastest = 0;
  for (size_t rank = 0; rank < of_.size(); ++rank) {
    if (members_[rank]) fastest = std::max(fastest, of_[rank]);
  }
  return fastest;
}

inline std::vector<uint32_t> Clocks::Behind(uint64_t clock) const {
  std::vector<uint32_t> behind;
  for (uint32_t rank = 0; rank < of_.size(); ++rank) {
    if (members_[rank] && of_[rank] < clock) behind.push_back(rank);
  }
  return behind;
}

}  // namespace longhaul::server
