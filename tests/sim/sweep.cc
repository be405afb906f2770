#include "tests/sim/sweep.h"

#include <algorithm>
#include <sstream>

#include "tests/sim/plan.h"

namespace longhaul::sim {
namespace {

constexpr uint64_t kTwice = 16;
constexpr uint64_t kProgress = 50;

void Add(uint64_t seed, const RunResult& run, SweepResult* sum) {
  ++sum->seeds;
  sum->encrypted += run.encrypted ? 1 : 0;
  sum->rounds += run.rounds_checked;
  sum->lost += run.chunks_lost;
  sum->repaid += run.chunks_repaid;
  sum->datagrams += run.datagrams;
  sum->left_out += run.left_out;
  sum->replicas += run.replicas_checked;
  sum->behind += run.chunks_behind;
  sum->late += run.late_windows;
  sum->unseen += run.unseen_versions;
  sum->weather_deaths += run.weather_deaths;
  sum->quick += run.quick_processes;
  size_t late = 0;
  for (const double bound : {0.0, 1.0, 2.0, 4.0, 8.0}) late += run.slowest_recovery > bound ? 1 : 0;
  if (run.quick_processes > 0) ++sum->recoveries[late];
  if (run.slowest_recovery > sum->slowest_recovery) {
    sum->slowest_recovery = run.slowest_recovery;
    sum->slowest_seed = seed;
  }
  sum->share_of_limit = std::max(sum->share_of_limit, run.share_of_limit);
  const double took = InSeconds(run.finished - Instant());
  if (took > sum->longest) {
    sum->longest = took;
    sum->longest_seed = seed;
  }
}

}  // namespace

std::string SweepResult::ToString() const {
  std::ostringstream out;
  out.precision(3);
  out << seeds << " seeds, " << encrypted << " of them encrypted: " << datagrams << " datagrams, " << rounds
      << " tensor rounds checked, " << lost << " contributions lost, " << repaid << " repaid, " << replicas
      << " replicas with " << behind << " chunks behind, " << left_out << " workers left out of a round, "
      << late << " late windows taken, " << unseen << " tensors with a version that no worker saw, "
      << weather_deaths << " jobs ended by loss alone, " << quick
      << " workers timed on the healed network, the slowest " << slowest_recovery
      << " s beyond three times what is needed (seed " << slowest_seed
      << "; runs with less than 0, 1, 2, 4, 8 s or more:";
  for (const uint64_t runs : recoveries) out << " " << runs;
  out << "), longest run " << longest << " s of virtual time (seed " << longest_seed << "), at most "
      << share_of_limit << " of what is allowed, " << failed.size() << " failed";
  return out.str();
}

RunResult RunSeed(uint64_t seed) {
  const RunPlan plan = DrawPlan(seed);
  RunResult result = RunCluster(plan);
  if (seed % kTwice == 0 && RunCluster(plan).event_log_hash != result.event_log_hash) {
    result.violations.push_back("two runs of this seed differ");
  }
  return result;
}

SweepResult Sweep(const SweepOptions& options) {
  SweepResult sum;
  for (uint64_t seed = options.first; sum.seeds < options.seeds && sum.failed.size() < options.most_failures;
       ++seed) {
    if (options.is_over && options.is_over()) break;
    const RunResult run = RunSeed(seed);
    Add(seed, run, &sum);
    if (!run.ok()) {
      sum.failed.push_back(seed);
      options.say("seed " + std::to_string(seed) + " FAILED, replay with: tools/dev sim --seed " +
                  std::to_string(seed));
      for (const std::string& violation : run.violations) options.say("  violation: " + violation);
    }
    if (sum.seeds % kProgress == 0)
      options.say(std::to_string(sum.seeds) + " seeds, " + std::to_string(sum.failed.size()) + " failed");
  }
  return sum;
}

}  // namespace longhaul::sim
