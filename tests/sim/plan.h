// One run, completely described: everything that a seed decides. The same plan gives the same run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "longhaul/job.h"
#include "longhaul/tensor.h"
#include "longhaul/units.h"
#include "tests/sim/faults.h"
#include "tests/sim/gradient_code.h"
#include "wan/link_options.h"

namespace longhaul::sim {

// A tensor as the workers will declare it.
struct TensorPlan {
  uint32_t chunks = 1;
  uint32_t tail = 8;  // elements of the last chunk beyond none; >= the markers' period, or 0 for a full chunk
  bool sgd = false;   // an optimizer: else aggregate
  float lr = 0.5f;
  float momentum = 0;
  enum class Adam : uint8_t { kNo, kL2, kDecoupled } adam = Adam::kNo;  // instead of SGD
  double beta1 = 0.9;
  double beta2 = 0.999;
  double weight_decay = 0;  // Adam's
  bool pull_apart = false;  // Push, then Pull; else PushPull
  bool sparse = false;
  DType wire = DType::kFloat32;  // of gradients; such that none of the job's values is rounded
  uint64_t initial_offers = 0;   // bit r: rank r offers initial values
  uint32_t ranks = kMaxRanks;    // that markers are for

  std::string Optimizer() const;
  // Elements of a chunk of its gradients, and how many chunks they are, when float32 chunks have so many
  // elements.
  uint32_t GradientElements(uint32_t chunk_elements) const;
  uint32_t GradientChunks() const;
  GradientKind Gradients() const { return {.sparse = sparse, .bytes = wire == DType::kInt8, .ranks = ranks}; }
};

// Of a durable job's workers: longer than any server of a plan is away, with the tries of a lossy network.
inline constexpr Duration kReconnectTimeout = std::chrono::seconds(60);

// One server and its workers.
struct JobPlan : JobSpec {
  JobPlan() {
    shift_alpha = 1;
    hash_rounds = 3;
    fec_depth = 4;
  }

  uint32_t workers = 2;
  uint32_t min_workers = 2;
  uint32_t start_workers = 0;  // 0: all
  uint32_t rounds = 3;
  // Before this round all wait until the faults are over and the network is healed; the rounds from it on
  // must be quick (liveness.h). 0: no such phase.
  uint32_t gate = 0;
  bool barriers = false;       // the workers meet before every round
  bool durable = false;        // the server has a round log, and workers wait for a server that is lost
  std::vector<float> weights;  // by rank
  std::vector<Duration> start_delays;  // by rank
  Duration think{0};                   // between two rounds of a tensor, at most
  std::vector<TensorPlan> tensors;

  // A round may go on without a worker that is alive.
  bool LeavesOut() const { return round_bound > Duration(0) || straggler_factor > 0 || quorum > 0; }
  // A window that has closed may lack chunks of its high class.
  bool MayLackHigh() const { return LeavesOut() || close_ratio_high < 1; }
  // Chunks do not arrive whole: only sums tell (CheckSums).
  bool IsTopK() const { return priority == Priority::kTopK; }
  // Every push is a step of its own. A worker makes `rounds` of them, and only sums tell.
  bool IsOfSteps() const { return staleness != 0; }
};

// How packets are protected.
enum class Protection : uint8_t { kTag, kSharedKey, kCertificates };

// Harness faults, to see the checkers bite.
enum class Sabotage : uint8_t {
  kNone,
  kDoubledContribution,  // a worker sends twice of what it says
  kWrongOutput,          // a worker reads one value wrong
  kLostResidual,         // a worker reports less residual than it has
  kForgottenTimer,       // a worker's host loses its timers
  kCallbackTwice,        // an operation ends twice
  kForgetfulDisk,        // a server's disk does not keep what it has said to keep
};

struct RunPlan {
  uint64_t seed = 1;
  std::vector<JobPlan> jobs;
  std::vector<wan::LinkOptions> up;  // by rank: towards the servers; jobs share the links
  std::vector<wan::LinkOptions> down;
  Duration idle_timeout = std::chrono::seconds(10);
  ByteCount datagram{1452};
  Protection protection = Protection::kTag;
  uint64_t key_update_packets = 0;  // keys are updated after so many; 0: as by default
  std::string injections;           // rare events inside the programs (base/inject.h)
  std::vector<Fault> faults;
  Duration time_limit{0};  // virtual: a run that takes longer makes no progress; zero: TimeLimit (liveness.h)
  Sabotage sabotage = Sabotage::kNone;

  bool Has(FaultKind kind) const { return std::ranges::count(faults, kind, &Fault::kind) > 0; }
  // Ranks that have a site.
  uint32_t sites() const { return static_cast<uint32_t>(up.size()); }

  // What was drawn, a line each.
  std::string ToString() const;
};

// Draws a plan; the faults too.
RunPlan DrawPlan(uint64_t seed);
// A small quiet run without loss and faults, to build scenarios on.
RunPlan QuietPlan(uint32_t workers);

}  // namespace longhaul::sim
