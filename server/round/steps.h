// Pushes where staleness is not 0: which step has the last of each, when it has counted, and whether it may
// be acknowledged (server/tensor/clocks.h).
//
//   window over -> [its step is closed by it] -> step over: it counts -> [may go on] -> PushTaken, result
//
// The step itself is made as any round is (server/round/round_engine.h). Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/instant.h"
#include "server/member/membership.h"
#include "server/round/pulls.h"
#include "server/round/round_host.h"
#include "server/round/tensor_job.h"

namespace longhaul::server {

class Steps {
 public:
  // All pointers must outlive this.
  Steps(const Membership* membership, RoundEngineHost* host, TensorJobs* jobs, Pulls* pulls,
        EngineStats* stats)
      : membership_(membership), host_(host), jobs_(jobs), pulls_(pulls), stats_(stats) {}

  // Windows that are over close the step that has the last of them. True: the step in progress, whose chunks
  // are to be swept for.
  bool Close(Instant now, TensorJob& job);
  void OnOver(Instant now, TensorJob& job, uint64_t step);
  // Acknowledges pushes that have counted, where the worker may go on.
  void Answer(Instant now, TensorJob& job);
  // A member that others wait for, and that does nothing, holds them no longer.
  void LeaveIdleOut(Instant now, TensorJob& job);
  // When to call LeaveIdleOut, by all calls since the last TakeCheckAt.
  Instant TakeCheckAt() { return std::exchange(check_at_, Instant::Infinite()); }
  // The rank's connection is over.
  static void Drop(TensorJob& job, uint32_t rank);
  void OnClockRequest(Peer& peer, const control::ClockRequest& request);
  // kDeadlineExceeded, with the names of the members that the pull waits for; Ok: it waits for none.
  Status WhyStale(const TensorJob& job, const PendingPull& pull) const;
  // The push whose worker has waited longest for others.
  std::optional<Wait> LongestHeld() const;

 private:
  void Count(Instant now, TensorJob& job, FinishedPush& push);
  // The members that the worker of this push waits for.
  std::vector<uint32_t> HoldersOf(const TensorJob& job, const FinishedPush& push) const;

  const Membership* membership_;
  RoundEngineHost* host_;
  TensorJobs* jobs_;
  Pulls* pulls_;
  EngineStats* stats_;
  Instant check_at_ = Instant::Infinite();
};

}  // namespace longhaul::server
