#include "offload/ringsim/random_runs.h"

#include "offload/ringsim/checker.h"

namespace longhaul::offload::ringsim {
namespace {

// A node becomes a leaf after three.
uint32_t RoundsOf(RingPolicy policy) { return policy == RingPolicy::kLeafDemote ? 2 * Demotion::kRounds : 2; }
constexpr uint32_t kLearning = Deadlines::kLeastSamples + 2;

Duration UpTo(Duration most, Random& random) {
  return Duration(Saturated(random.Uniform() * static_cast<double>(most.count())));
}

RingLoad Draw(uint32_t nodes, double slow, Duration most, Random& random) {
  RingLoad load(nodes);
  for (Duration& extra : load.slow) extra = random.Chance(slow) ? UpTo(most, random) : Duration(0);
  load.seed = random.Next();
  return load;
}

void Judge(uint64_t seed, const RingModel& model, const RingLoad& load, RingSim& sim, RandomTally* tally) {
  const RingOutcome outcome = sim.Run(load);
  ++tally->runs;
  const std::string complaint = CheckExactlyOnce(model, outcome);
  if (!complaint.empty()) {
    ++(outcome.stuck ? tally->stuck : tally->wrong);
    if (tally->first.empty()) tally->first = "seed " + std::to_string(seed) + ": " + complaint;
    return;
  }
  RingModel off = model;
  off.policy = RingPolicy::kOff;
  tally->time += static_cast<double>(outcome.time.count());
  tally->time_off += static_cast<double>(RingSim(off).Run(load).time.count());
}

}  // namespace

void RunAnything(uint64_t seed, RingPolicy policy, RandomTally* tally) {
  Random random(seed);
  RingModel model;
  model.nodes = static_cast<uint32_t>(3 + random.Below(14));
  model.policy = policy;
  model.alpha = 0;
  model.all_chunks = true;
  model.one_engine = random.Chance(0.5);
  const double slow = 0.3 * random.Uniform();
  const double late = 0.2 * random.Uniform();
  const Duration jitter = UpTo(std::chrono::microseconds(5), random);
  const double duplicates = 0.1 * random.Uniform();
  const bool always = random.Chance(0.25);
  const auto slow_node = static_cast<uint32_t>(random.Below(model.nodes));
  RingSim sim(model);
  if (!random.Chance(0.125)) sim.Learn(kLearning, jitter, random.Next());
  for (uint32_t round = 0; round < RoundsOf(policy); ++round) {
    RingLoad load = Draw(model.nodes, slow, std::chrono::microseconds(100), random);
    for (uint32_t chunk = 0; always && chunk < model.nodes; ++chunk) {
      load.slow[size_t{slow_node} * model.nodes + chunk] = std::chrono::microseconds(50);
    }
    for (Duration& at : load.host)
      at = random.Chance(late) ? UpTo(std::chrono::microseconds(100), random) : Duration(0);
    load.jitter = jitter;
    load.duplicates = duplicates;
    Judge(seed, model, load, sim, tally);
  }
}

void RunSlowReduces(uint64_t seed, uint32_t nodes, double share, RingPolicy policy, double alpha,
                    RandomTally* tally) {
  Random random(seed);
  RingModel model;
  model.nodes = nodes;
  model.policy = policy;
  model.alpha = alpha;
  model.all_chunks = true;
  RingSim sim(model);
  if (alpha == 0) sim.Learn(32, Duration(0), random.Next());
  const RingLoad load = Draw(nodes, share, 20 * model.reduce_time, random);
  Judge(seed, model, load, sim, tally);
}

}  // namespace longhaul::offload::ringsim
