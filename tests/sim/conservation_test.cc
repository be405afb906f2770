// Conservation by whole cores: what workers produce is in the server's values or still with them, over links
// that lose up to 60 %, double, reorder and delay, with windows that rounds do not wait for (their late
// chunks meet the next generation), and workers that are killed and replaced by their next incarnation.
// tests/server/conservation_test.cc has the same without the network's time; here the engine, the sessions
// and the transport are the ones that run.
#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <set>
#include <string>

#include "tests/sim/cluster.h"
#include "tests/sim/plan.h"

namespace longhaul::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct Totals {
  uint64_t rounds = 0;
  uint64_t lost = 0;
  uint64_t repaid = 0;
  uint64_t left_out = 0;
  uint64_t late = 0;
  uint64_t successors = 0;
};

RunPlan PlanOf(LossPolicy policy, uint64_t seed, double close_ratio_high) {
  Random random(seed);
  RunPlan plan = QuietPlan(3);
  plan.seed = seed;
  plan.idle_timeout = seconds(120);  // at 60 % each way silence is common
  JobPlan& job = plan.jobs[0];
  job.seed = seed;
  job.policy = policy;
  job.rounds = 40;
  job.high_share = 0.3 * random.Uniform();
  job.close_ratio = 0.3 + 0.6 * random.Uniform();
  job.tensors = {{.chunks = 6, .tail = 64}, {.chunks = 5, .tail = 40, .sparse = true}};
  job.close_ratio_high = close_ratio_high;
  if (close_ratio_high < 1) {  // so many that windows may close without one, and no low ones
    job.high_share = 1;
    job.tensors = {{.chunks = 12, .tail = 64}, {.chunks = 15, .tail = 40, .sparse = true}};
  }
  if (seed % 2 == 0) job.round_bound = milliseconds(150);
  const double loss = 0.6 * random.Uniform();
  for (auto* links : {&plan.up, &plan.down}) {
    for (wan::LinkOptions& link : *links) {
      link.delay = milliseconds(5);
      link.jitter = milliseconds(4);
      link.jitter_reorders = true;
      link.loss = loss;
      link.duplicate = 0.1;
      link.reorder = 0.1;
    }
  }
  if (seed % 3 == 0) {
    plan.faults.push_back({.kind = FaultKind::kKillAndRestart,
                           .rank = static_cast<uint32_t>(seed / 3 % 3),
                           .after_push = 12,
                           .duration = milliseconds(300)});
  }
  return plan;
}

// Incarnations of a rank after its first one whose gradients were among the pushes.
uint64_t SuccessorsThatPushed(const RunResult& result) {
  uint64_t successors = 0;
  for (const JobLedger& ledger : result.ledgers) {
    std::map<uint32_t, std::set<uint64_t>> incarnations;  // by rank
    for (const PushRecord& push : ledger.pushes) incarnations[push.id.rank].insert(push.id.incarnation);
    for (const auto& [rank, seen] : incarnations) successors += seen.size() - 1;
  }
  return successors;
}

Totals RunAll(LossPolicy policy, uint64_t first, uint64_t seeds, double close_ratio_high = 1) {
  Totals totals;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const RunPlan plan = PlanOf(policy, seed, close_ratio_high);
    const RunResult result = RunCluster(plan);
    for (const std::string& violation : result.violations)
      ADD_FAILURE() << "seed " << seed << ": " << violation;
    totals.rounds += result.rounds_checked;
    totals.lost += result.chunks_lost;
    totals.repaid += result.chunks_repaid;
    totals.left_out += result.left_out;
    totals.late += result.late_windows;
    totals.successors += SuccessorsThatPushed(result);
  }
  std::cout << NameOf(policy) << ": " << totals.rounds << " tensor rounds checked, " << totals.lost
            << " contributions lost, " << totals.repaid << " repaid, " << totals.left_out
            << " workers left out, " << totals.late << " late windows taken, " << totals.successors
            << " replaced workers went on\n";
  return totals;
}

TEST(EngineConservation, ResidualsHoldOverThousandsOfRounds) {
  const Totals totals = RunAll(LossPolicy::kResidual, 60'000, 24);
  EXPECT_GT(totals.rounds, 1'500u);
  EXPECT_GT(totals.repaid, 2'000u);
  EXPECT_GT(totals.left_out, 100u);
  EXPECT_GT(totals.late, 10u);
  EXPECT_GT(totals.successors, 2u);
}

TEST(EngineConservation, ShiftsHoldOverThousandsOfRounds) {
  const Totals totals = RunAll(LossPolicy::kShift, 61'000, 24);
  EXPECT_GT(totals.rounds, 1'400u);
  EXPECT_GT(totals.lost, 2'000u);
  EXPECT_GT(totals.left_out, 100u);
}

// Windows close with nine of ten high chunks; there are no others.
TEST(EngineConservation, ResidualsHoldWhenHighChunksMayBeMissing) {
  const Totals totals = RunAll(LossPolicy::kResidual, 62'000, 12, 0.9);
  EXPECT_GT(totals.rounds, 700u);
  EXPECT_GT(totals.lost, 300u);
  EXPECT_GT(totals.repaid, 200u);
}

TEST(EngineConservation, ShiftsHoldWhenHighChunksMayBeMissing) {
  const Totals totals = RunAll(LossPolicy::kShift, 63'000, 12, 0.9);
  EXPECT_GT(totals.rounds, 700u);
  EXPECT_GT(totals.lost, 300u);
}

}  // namespace
}  // namespace longhaul::sim
