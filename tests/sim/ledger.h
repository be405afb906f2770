// What the workers' applications saw during a run, written down by the harness: what was pushed, how it ended
// and which values came back. Plain data; the checkers judge it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/instant.h"
#include "longhaul/status.h"
#include "tests/sim/gradient_code.h"

namespace longhaul::sim {

// One push (with or without pull) of one process.
struct PushRecord {
  GradientId id;
  Instant issued;
  Instant ended;
  int ends = 0;  // times its callback ran
  Status outcome;
  uint64_t round = 0;        // valid when the outcome is Ok
  uint32_t lost_chunks = 0;  // as reported to the application
  // Nothing of it was sent: its round was over. A policy that repays owes all of it.
  bool passed_over = false;
  // It has counted, and its result was lost with the server: an aggregate of a round before the last.
  bool result_gone = false;

  // Its worker knows what of it has counted.
  bool completed() const { return ends > 0 && (outcome.ok() || result_gone); }
};

// Any other operation.
struct OperationRecord {
  std::string what;
  uint32_t rank = 0;
  uint64_t incarnation = 0;
  Instant issued;
  Instant ended;
  int ends = 0;
  Status outcome;
};

// One version of a tensor: version v is what round v - 1 made; version 0 are the initial values.
struct VersionRecord {
  std::vector<float> values;  // as the first worker saw it
  uint32_t first_rank = 0;
  uint32_t seen = 0;  // times
};

// The result of a PushPull over a lossy downlink: each of its chunks is that of the version or of the one
// before.
struct ReplicaRecord {
  uint32_t tensor = 0;
  uint32_t rank = 0;
  uint64_t incarnation = 0;
  uint64_t version = 0;
  std::vector<float> values;
};

// What a process still had to repay when it was through with a tensor.
struct ResidualRecord {
  uint32_t tensor = 0;
  uint32_t rank = 0;
  uint64_t incarnation = 0;
  std::vector<float> values;
};

// One worker process, from start to end.
struct ProcessRecord {
  uint32_t rank = 0;
  uint64_t incarnation = 0;
  Instant started;
  Instant ended = Instant::Infinite();
  Instant all_done = Instant::Infinite();  // all its rounds, and the barrier behind them
  bool killed = false;                     // by a fault: what it says does not count
  bool finished = false;                   // did all its rounds and left
  bool stranded = false;                   // told to leave since no job would come any more
  bool meant_to_be_refused = false;
  Status failure;             // Ok unless it failed
  uint32_t heard_lately = 0;  // datagrams from the server within (almost) one idle time-out before it failed
  Instant last_heard;         // the latest of them; the start when it never heard one
};

// The server declared a member lost.
struct LossRecord {
  Instant when;
  uint32_t rank = 0;
  Status why;
  uint32_t heard_lately = 0;  // datagrams from it within (almost) one idle time-out before
};

struct JobLedger {
  uint32_t chunk_elements = 0;  // 0: the job never started
  std::vector<PushRecord> pushes;
  std::vector<OperationRecord> operations;
  std::map<std::pair<uint32_t, uint64_t>, VersionRecord> versions;  // by tensor and version
  std::vector<ResidualRecord> residuals;
  std::vector<ReplicaRecord> replicas;  // in the order of time
  std::vector<ProcessRecord> processes;
  // Every disagreement between two workers about one version.
  std::vector<std::string> disagreements;
  // The server's view.
  bool server_killed = false;
  bool server_shut_down = false;
  uint32_t server_restarts = 0;
  uint32_t fewest_started = UINT32_MAX;  // workers of a start of the job; also of one that goes on
  Instant server_ended;                  // when it was asked to end
  // A process took the place of one of its own incarnation, which was silent: what is whose cannot be told.
  bool taken_over = false;
  std::vector<LossRecord> losses;
  uint64_t jobs_finished = 0;
  uint64_t jobs_aborted = 0;
  std::string job_outcome;
  uint64_t duplicate_contributions = 0;
  uint64_t left_out = 0;                 // workers that rounds did not wait for
  uint64_t late_windows = 0;             // of rounds that had gone on, taken into later ones
  std::vector<uint64_t> chunks_by_rank;  // contributions added, of the first job
  // Of the phase behind the gate: when it began, and what it takes without loss. Infinite: it never did.
  Instant healed = Instant::Infinite();
  Duration lossless{0};
  // The first moment at which a process was certain to be dead; Infinite: never.
  Instant first_death = Instant::Infinite();
};

}  // namespace longhaul::sim
