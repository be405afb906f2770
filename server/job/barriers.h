// Named points that all joined workers wait for, and how many each may open. Not thread-safe.
//
// A name counts for the rank that was there first, until it is released or no worker waits at it: another
// process of the rank has no names more. What one member opened any other may join, so a rank that opens too
// many keeps no other from anything.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/instant.h"
#include "longhaul/status.h"

namespace longhaul::server {

class Barriers {
 public:
  // Names that one member may have open, and what all of them may have in large jobs: with 1,024 waiters at
  // each, and names of 256 bytes, 36 MiB.
  static constexpr size_t kMaxPerMember = 64;
  static constexpr size_t kMaxOfJob = 4096;

  struct Waiter {
    uint32_t rank = 0;
    uint32_t request = 0;
  };
  struct Barrier {
    uint32_t opener = 0;  // rank
    Instant since;
    std::vector<Waiter> waiters;
    bool Has(uint32_t rank) const;
  };

  explicit Barriers(uint32_t world_size) : opened_(world_size, 0) {}

  static size_t MaxPerMember(uint32_t world_size);

  // The rank waits. Errors, for the one call: kResourceExhausted (it has opened as many as it may),
  // kFailedPrecondition (it waits at this one already).
  Status Wait(const std::string& name, Waiter waiter, Instant now);
  // The wait ends before the barrier is complete: its name, with what is left of it. None: it waits nowhere
  // under this request.
  std::optional<std::pair<std::string, Barrier>> GiveUp(Waiter waiter);
  // The rank's worker is gone, or replaced.
  void Forget(uint32_t rank);
  // Removes the barriers that `joined` workers have reached; returns their waiters.
  std::vector<Waiter> Release(uint32_t joined);
  void Clear();

  // Names that were one too many for their member.
  uint64_t refused() const { return refused_; }
  // The barrier with the most waiters; of several, the one that was opened first. Null: there is none. So a
  // barrier that one member opens for itself does not hide the others'.
  const std::pair<const std::string, Barrier>* Fullest() const;

 private:
  using Map = std::map<std::string, Barrier>;
  Map::iterator Erase(Map::iterator barrier);

  Map barriers_;
  std::vector<uint32_t> opened_;  // by rank: names that count for it
  uint64_t refused_ = 0;
};

}  // namespace longhaul::server
