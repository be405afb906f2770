// Keeps the pushes of one training step in rounds that fit each other.
//
// Where rounds wait for all members, a worker that one of them went on without is a round behind there, and
// not elsewhere: at another server, or with another tensor. Two such workers, each behind where the other one
// is not, wait for each other:
//
//             tensor a, round 7          tensor b, round 7
//   worker 0  step 6 (6 passed it)       step 7, after step 6
//   worker 1  step 7, after step 6       step 6 (6 passed it)
//
// So a push whose round is over, or that would be in a later round than the other pushes of its step, is
// passed over: the round has nothing of it, the loss policy owes it, its result are the values of that
// moment. Then all of the next step are in one round again.
//
// Tensors are pushes of one step while they have been pushed equally often and their rounds are near. Where
// that is wrong, a gradient is owed once that could have counted. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

namespace longhaul::worker {

class RoundAlignment {
 public:
  RoundAlignment() = default;
  RoundAlignment(const RoundAlignment&) = delete;
  virtual ~RoundAlignment() = default;
  // A server of the job and a tensor's handle there: all of the tensor, or its part.
  using Part = std::pair<uint32_t, uint32_t>;

  // The part's next push, of which there were `pushes` before, is for this round or a later one.
  virtual void Set(Part part, uint64_t pushes, uint64_t round) { parts_[part] = {pushes, round}; }
  // By so many rounds the part's next push would be later than the others of its step. REQUIRES: Set.
  virtual uint64_t Ahead(Part part) const {
    const Place& own = parts_.at(part);
    uint64_t ahead = 0;
    for (const auto& [other, place] : parts_) {  // a negative difference is a large one
      const uint64_t pushes = place.pushes - own.pushes;
      const uint64_t rounds = own.round - place.round + pushes;
      if (pushes <= kPushes && rounds <= kRounds) ahead = std::max(ahead, rounds);
    }
    return std::min(ahead, own.round);
  }

 private:
  // By how many others may be further in their count: their push of the step has begun already.
  static constexpr uint64_t kPushes = 1;
  // Servers are a round apart at most, since each step waits for all; and one may have the worker's push of
  // its round already, from the process before.
  static constexpr uint64_t kRounds = 2;

  struct Place {
    uint64_t pushes = 0;
    uint64_t round = 0;
  };
  std::map<Part, Place> parts_;
};

}  // namespace longhaul::worker
