// The table of what a worker has been asked for and has not finished: every entry ends exactly once.
//
// An end is noted at once, its callback runs later, in RunCallbacks(): so callbacks never run inside of
// another part's event, and may start new operations. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "base/instant.h"
#include "longhaul/stats.h"
#include "longhaul/status.h"

namespace longhaul::worker {

using OperationId = uint64_t;  // never reused

class Operations {
 public:
  using Callback = std::function<void(const Status& outcome, const OperationStats& stats)>;

  // At most `bound` operations are pending or wait for their callback at once.
  explicit Operations(size_t bound) : bound_(bound) {}

  // An operation begins. When the bound is reached it ends at once with kResourceExhausted.
  OperationId Begin(Instant now, Callback callback);
  // One that is refused before it begins.
  void Refuse(Callback callback, Status why);

  bool IsPending(OperationId id) const { return pending_.contains(id); }
  // To be filled in while the operation is pending. REQUIRES: IsPending(id).
  OperationStats& stats(OperationId id);
  // The operation ends. False, and nothing happens, when it has ended before.
  bool Finish(OperationId id, const Status& outcome, Instant now, Duration rtt);
  // Everything pending ends like this, in the order of the beginnings.
  void FinishAll(const Status& outcome, Instant now, Duration rtt);

  // Callbacks wait to be run.
  bool HasCompleted() const { return !completed_.empty(); }
  // Runs those that wait now; what they complete in turn waits for the next call.
  void RunCallbacks();

  size_t pending() const { return pending_.size(); }
  uint64_t started() const { return started_; }
  uint64_t succeeded() const { return succeeded_; }
  uint64_t failed() const { return failed_; }
  uint64_t refused() const { return refused_; }

 private:
  struct Entry {
    Callback callback;
    OperationStats stats;
    Instant begun;
  };
  struct Completed {
    Callback callback;
    Status outcome;
    OperationStats stats;
  };

  const size_t bound_;
  OperationId next_ = 1;
  std::unordered_map<OperationId, Entry> pending_;
  std::vector<Completed> completed_;
  uint64_t started_ = 0;
  uint64_t succeeded_ = 0;
  uint64_t failed_ = 0;
  uint64_t refused_ = 0;
};

}  // namespace longhaul::worker
