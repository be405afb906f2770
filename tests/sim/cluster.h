// Runs a plan: servers and workers over a VirtualNetwork, in one thread and in virtual time, with its faults
// striking when they should, until every process has come to its end.
//
//              site 0                       site 1 + r              site 1 + kMaxRanks + r
//   servers (one a job) ── up[r], down[r] ── worker rank r of every job      its successor after a partition
//
// The checkers' verdict is part of the result. Deterministic: the same plan gives the same event log.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/instant.h"
#include "tests/sim/ledger.h"
#include "tests/sim/plan.h"

namespace longhaul::sim {

struct RunResult {
  std::vector<std::string> violations;  // empty: all is well
  bool encrypted = false;
  uint64_t event_log_hash = 0;
  Instant finished;           // when the last process had come to its end
  double share_of_limit = 0;  // of the time that the run might have taken
  uint64_t events = 0;
  uint64_t datagrams = 0;
  size_t most_pending_events = 0;
  uint64_t rounds_checked = 0;    // tensor rounds that the model recomputed
  uint64_t chunks_lost = 0;       // contributions that did not arrive, as the model saw
  uint64_t chunks_repaid = 0;     // lost contributions that a later round brought
  uint64_t replicas_checked = 0;  // results over a lossy downlink
  uint64_t chunks_behind = 0;     // of them, chunks of the version before
  uint64_t left_out = 0;          // workers that rounds did not wait for
  uint64_t unseen_versions =
      0;  // tensors with a version between two others that no worker saw: checked up to there
  uint64_t late_windows = 0;     // their windows that later rounds took
  uint64_t weather_deaths = 0;   // jobs ended by a lossy link that was silent by chance
  uint64_t quick_processes = 0;  // whose last rounds were timed on a sound network
  double slowest_recovery = 0;   // of them, seconds beyond three times what is needed
  std::vector<JobLedger> ledgers;

  bool ok() const { return violations.empty(); }
  // Workers' processes that did all their rounds and left orderly.
  uint32_t FinishedProcesses() const;
};

// `trace` gets a line for whatever happens; it may be empty.
RunResult RunCluster(const RunPlan& plan, const std::function<void(const std::string&)>& trace = {});

}  // namespace longhaul::sim
