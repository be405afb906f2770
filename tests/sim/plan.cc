#include "tests/sim/plan.h"

#include <algorithm>
#include <sstream>

#include "base/random.h"
#include "codec/chunk/chunk.h"

namespace longhaul::sim {
namespace {

using std::chrono::milliseconds;

Duration Between(Random& random, Duration low, Duration high) {
  return low + Duration(static_cast<int64_t>(random.Uniform() * static_cast<double>((high - low).count())));
}

uint32_t Between(Random& random, uint32_t low, uint32_t high) {
  return low + static_cast<uint32_t>(random.Below(high - low + 1));
}

// One of the values, all alike.
template <typename T, size_t N>
T OneOf(Random& random, const T (&values)[N]) {
  return values[random.Below(N)];
}

TensorPlan DrawTensor(Random& random, uint32_t workers) {
  TensorPlan tensor;
  tensor.chunks = random.Chance(0.4) ? Between(random, 1, 4) : Between(random, 5, 40);
  tensor.tail = random.Chance(0.3) ? 0 : Between(random, kMarkerPeriod, 200);
  tensor.sgd = random.Chance(0.5);
  tensor.lr = OneOf(random, {0.25f, 0.5f, 1.0f});
  tensor.momentum = random.Chance(0.5) ? OneOf(random, {0.5f, 0.75f}) : 0.0f;
  tensor.pull_apart = tensor.sgd && random.Chance(0.3);
  tensor.sparse = random.Chance(0.3);
  if (tensor.sgd && random.Chance(0.5)) tensor.initial_offers = random.Below(uint64_t{1} << workers);
  return tensor;
}

// What a round waits for, how it is summed, and the policies that came later.
void DrawRounds(Random random, JobPlan* job) {
  job->deterministic = random.Chance(0.2);
  if (random.Chance(0.4))
    job->policy = OneOf(random, {LossPolicy::kShift, LossPolicy::kShift, LossPolicy::kIpw});
  job->shift_alpha = OneOf(random, {1.0, 0.5, 0.25});
  if (!random.Chance(0.3)) return;
  // Always with a bound: a late worker would wait for the others, which have done all their rounds.
  job->round_bound = Between(random, milliseconds(60), milliseconds(random.Chance(0.5) ? 300 : 3000));
  if (random.Chance(0.5)) job->straggler_factor = 1 + 2 * random.Uniform();
  if (!job->deterministic && random.Chance(0.4)) job->quorum = Between(random, 1, job->workers);
}

// Ten gradients of 200 at most fit into float16 together, one fits into bfloat16; a part of one into neither.
// One of bytes fits into int8, two do not.
void DrawWireTypes(Random random, JobPlan* job) {
  const bool repays = job->policy == LossPolicy::kResidual || job->policy == LossPolicy::kShift;
  if (job->policy == LossPolicy::kShift && job->shift_alpha < 1) return;
  for (TensorPlan& tensor : job->tensors) {
    if (!random.Chance(0.3)) continue;
    tensor.wire = repays ? DType::kFloat16 : OneOf(random, {DType::kFloat16, DType::kBFloat16, DType::kInt8});
  }
}

// Every round is pulled besides, so that the models have what the server has.
void DrawDownlink(Random random, JobPlan* job) {
  if (!random.Chance(0.3)) return;
  job->downlink = Downlink::kLossy;
  job->hash_rounds = Between(random, 1, 5);
  for (TensorPlan& tensor : job->tensors) {
    tensor.sgd = true;
    tensor.pull_apart = false;
  }
}

// What the models can tell from Adam's steps: whose contributions are in, not how large a divisor was before.
void DrawAdam(Random random, JobPlan* job) {
  const bool fits = (job->policy == LossPolicy::kResidual || job->policy == LossPolicy::kZero) &&
                    job->downlink == Downlink::kReliable && !job->LeavesOut();
  if (!fits || !random.Chance(0.5)) return;
  for (TensorPlan& tensor : job->tensors) {
    if (!tensor.sgd || !random.Chance(0.6)) continue;
    tensor.adam = random.Chance(0.5) ? TensorPlan::Adam::kL2 : TensorPlan::Adam::kDecoupled;
    tensor.momentum = 0;
    tensor.beta1 = OneOf(random, {0.9, 0.5});
    tensor.beta2 = OneOf(random, {0.999, 0.75});
    // With values other than zero the decay alone makes the first step as large as any gradient does.
    const bool decays = tensor.adam == TensorPlan::Adam::kDecoupled || tensor.initial_offers == 0;
    tensor.weight_decay = random.Chance(0.5) && decays ? 0.01 : 0;
  }
}

// Sums tell what came of a gradient only while every worker is in every round, and nothing is rounded.
void DrawTopK(Random random, JobPlan* job) {
  const bool fits =
      job->policy == LossPolicy::kResidual && job->downlink == Downlink::kReliable && !job->LeavesOut();
  if (!fits || !random.Chance(0.12)) return;
  job->priority = Priority::kTopK;
  job->topk_share = OneOf(random, {1.0 / 64, 0.1, 0.5, 1.0});
  for (TensorPlan& tensor : job->tensors) {
    tensor.wire = DType::kFloat32;
    tensor.momentum = 0;
    tensor.adam = TensorPlan::Adam::kNo;
  }
}

// SSP and ASP. As above; and the steps of a momentum do not add up.
void DrawSteps(Random random, JobPlan* job) {
  const bool fits =
      job->policy == LossPolicy::kResidual && job->downlink == Downlink::kReliable && !job->LeavesOut();
  if (!fits || job->IsTopK() || !random.Chance(0.3)) return;
  job->staleness = OneOf(random, {-1, 1, 1, 2, 4});
  job->deterministic = false;
  for (TensorPlan& tensor : job->tensors) {
    tensor.sgd = true;
    tensor.wire = DType::kFloat32;
    tensor.momentum = 0;
    tensor.adam = TensorPlan::Adam::kNo;
  }
}

// Some jobs begin without the last worker to come. Not with top-k, whose sums are checked where all workers
// are in every round. All workers offer initial values, or none does: a late worker's offer would come too
// late.
void DrawStart(Random& random, JobPlan* job) {
  if (job->IsTopK() || job->IsOfSteps() || !random.Chance(0.4)) return;
  job->start_workers = Between(random, job->min_workers, job->workers - 1);
  const auto late = static_cast<uint32_t>(random.Below(job->workers));
  job->start_delays[late] += Between(random, milliseconds(900), milliseconds(4000));
  const uint64_t all = (uint64_t{1} << job->workers) - 1;
  for (TensorPlan& tensor : job->tensors) tensor.initial_offers = tensor.initial_offers == 0 ? 0 : all;
}

// Up to 64 ranks, of which the models pick each one's contributions by itself.
void DrawLargeJob(Random random, JobPlan* job) {
  job->workers = job->min_workers = Between(random, kMaxRanks + 1, random.Chance(0.3) ? kMostRanks : 20);
  job->rounds = Between(random, 2, 3);
  job->policy = random.Chance(0.5) ? LossPolicy::kResidual : LossPolicy::kZero;
  job->straggler_factor = 0;
  job->round_bound = Duration(0);
  job->quorum = 0;
  job->downlink = Downlink::kReliable;
  job->priority = Priority::kEnergy;
  job->staleness = 0;
  job->weights.assign(job->workers, 1.0f);
  job->start_delays.assign(job->workers, Duration(0));
  for (Duration& delay : job->start_delays) delay = Between(random, milliseconds(0), milliseconds(100));
  job->tensors.resize(1);
  TensorPlan& tensor = job->tensors.front();
  tensor.ranks = kMostRanks;
  tensor.chunks = Between(random, 1, 8);
  tensor.tail = random.Chance(0.3) ? 0 : Between(random, kMostRanks + kFill, 200);
  tensor.wire = DType::kFloat32;
  if (tensor.sgd && tensor.initial_offers != 0) tensor.initial_offers = random.Next();
}

// Rounds behind the faults, that must be quick.
constexpr uint32_t kLivenessRounds = 4;

JobPlan DrawJob(Random random) {
  JobPlan job;
  job.seed = random.Next();
  job.workers = random.Chance(0.1) ? 1 : Between(random, 2, kMaxRanks);
  job.min_workers = random.Chance(0.6) ? job.workers : Between(random, 1, job.workers);
  job.rounds = Between(random, 3, random.Chance(0.2) ? 10 : 5);
  job.policy = OneOf(random, {LossPolicy::kResidual, LossPolicy::kResidual, LossPolicy::kZero,
                              LossPolicy::kCount, LossPolicy::kStale});
  // What these fill goes by the share of the low chunks that is lost, and the model knows how many are low
  // only where they do not depend on that.
  if (job.policy != LossPolicy::kResidual) job.lost_energy = 1;
  job.high_share = random.Chance(0.2) ? OneOf(random, {0.0, 1.0}) : 0.05 + 0.5 * random.Uniform();
  job.close_ratio = random.Chance(0.2) ? 1.0 : 0.5 + 0.5 * random.Uniform();
  job.bubble_threshold = random.Chance(0.3) ? 0.0 : 0.3 * random.Uniform();
  job.fec_k = OneOf<uint8_t>(random, {0, 8, 12, 16, 20, 24});
  job.fec_depth = static_cast<uint8_t>(Between(random, 1, 6) - 1);  // 0: as the connections advise
  const bool weighted = random.Chance(0.3);
  const bool late = random.Chance(0.2);
  for (uint32_t rank = 0; rank < job.workers; ++rank) {
    job.weights.push_back(weighted ? static_cast<float>(Between(random, 1, 3)) : 1.0f);
    job.start_delays.push_back(Between(random, milliseconds(0), milliseconds(100)));
  }
  if (late)
    job.start_delays[random.Below(job.workers)] += Between(random, milliseconds(500), milliseconds(15000));
  if (random.Chance(0.4)) job.think = Between(random, milliseconds(1), milliseconds(60));
  const uint32_t tensors = Between(random, 1, 3);
  for (uint32_t i = 0; i < tensors; ++i) job.tensors.push_back(DrawTensor(random, job.workers));
  DrawRounds(Random(job.seed), &job);
  DrawWireTypes(Random(job.seed + 1), &job);
  DrawDownlink(Random(job.seed + 2), &job);
  DrawAdam(Random(job.seed + 3), &job);
  DrawTopK(Random(job.seed + 4), &job);
  DrawSteps(Random(job.seed + 6), &job);
  Random more(job.seed + 5);
  if (more.Chance(0.02)) DrawLargeJob(more, &job);
  job.barriers = !job.LeavesOut() && !job.IsOfSteps() && more.Chance(0.15);
  // A barrier waits for those that are in.
  if (job.min_workers < job.workers && !job.barriers) DrawStart(more, &job);
  // No honest gradient is so much larger than the others', also with what it repays: the guard refuses none.
  if (more.Chance(0.3)) job.norm_guard = 1000;
  job.gate = job.rounds;
  job.rounds += kLivenessRounds;
  return job;
}

// Every trouble is switched on or off by itself, so that runs with few of them in strong form are common.
wan::LinkOptions DrawLink(Random& random, const wan::LinkOptions& troubles) {
  wan::LinkOptions link = troubles;
  link.delay = Between(random, milliseconds(1), random.Chance(0.3) ? milliseconds(120) : milliseconds(30));
  link.jitter = Duration(static_cast<int64_t>(static_cast<double>(link.delay.count()) *
                                              (troubles.jitter.count() > 0 ? 0.9 * random.Uniform() : 0)));
  link.loss = troubles.loss * random.Uniform();
  return link;
}

wan::LinkOptions DrawTroubles(Random& random) {
  wan::LinkOptions link;
  link.rate = Bandwidth::Mbps(random.Chance(0.3) ? 2 + 8 * random.Uniform() : 10 + 190 * random.Uniform());
  link.queue_time = Between(random, milliseconds(10), milliseconds(150));
  if (random.Chance(0.6)) link.loss = random.Chance(0.4) ? 0.3 : 0.06;
  // Bursts are counted in packets: with many of them a quiet connection would be dead for seconds.
  if (link.loss > 0 && random.Chance(0.3)) {
    link.loss = std::min(link.loss, 0.1);
    link.loss_burst = 1.5 + 2 * random.Uniform();
  }
  if (random.Chance(0.3)) link.duplicate = 0.2 * random.Uniform();
  if (random.Chance(0.3)) link.reorder = 0.2 * random.Uniform();
  if (random.Chance(0.3)) link.corrupt = 0.05 * random.Uniform();
  if (random.Chance(0.4)) {
    link.jitter = milliseconds(1);  // drawn per link
    link.jitter_reorders = random.Chance(0.5);
  }
  return link;
}

// Keys cost the handshakes' time: a quarter of the runs.
void DrawProtection(Random random, RunPlan* plan) {
  if (!random.Chance(0.25)) return;
  plan->protection = random.Chance(0.2) ? Protection::kCertificates : Protection::kSharedKey;
  if (random.Chance(0.5)) plan->key_update_packets = 20 + random.Below(200);
}

// One rare event often, or all of them now and then. Those of the cores: there are no sockets here.
void DrawInjections(Random random, RunPlan* plan) {
  if (!random.Chance(0.25)) return;
  const std::string name =
      OneOf(random, {"all", "all", "all", "window-closes-early", "mtu-probe-lost",
                     "missing-chunks-asked-for-early", "packet-given-up-early", "grant-withheld"});
  plan->injections = name + (name == "all" ? "=0.01" : "=0.2") + ",seed=" + std::to_string(plan->seed);
}

void DrawFaults(Random random, RunPlan* plan) {
  const auto strikes = [&](const auto& draw) {
    const auto job = static_cast<uint32_t>(random.Below(plan->jobs.size()));
    const JobPlan& hit = plan->jobs[job];
    const auto pushes = static_cast<uint32_t>(hit.gate * hit.tensors.size());
    plan->faults.push_back(draw(job, hit.workers, pushes));
  };
  const uint64_t faults = random.Chance(0.4) ? 0 : 1 + random.Below(3);
  for (uint64_t i = 0; i < faults; ++i) {
    strikes([&](uint32_t job, uint32_t workers, uint32_t pushes) {
      return DrawFault(random, job, workers, pushes, plan->idle_timeout);
    });
  }
  // A twin is refused while the first one answers: from another address it does so only when that has been
  // proved.
  const auto silences = [](const Fault& fault) {
    return IsPause(fault.kind) || HitsSite(fault.kind) || fault.kind == FaultKind::kAddressChange;
  };
  if (std::ranges::any_of(plan->faults, silences)) {
    std::erase_if(plan->faults, [](const Fault& fault) { return fault.kind == FaultKind::kTwin; });
  }
  // A process that comes back finds the others behind barriers that they will not come to again.
  const auto deadly = [&](const Fault& fault) { return MayKill(fault, plan->idle_timeout); };
  if (std::ranges::any_of(plan->faults, deadly)) {
    for (JobPlan& job : plan->jobs) job.barriers = false;
  }
  const uint64_t changes = random.Chance(0.5) ? 0 : 1 + random.Below(4);
  for (uint64_t i = 0; i < changes; ++i) {
    strikes([&](uint32_t job, uint32_t workers, uint32_t pushes) {
      return DrawWeather(random, job, workers, pushes);
    });
  }
}

// Servers that start again, in a quarter of the runs: their jobs have a round log, and of other faults only
// those that end no member for good. A server's memory of what it has filled with begins anew, which the
// model of a stale mean does not know; barriers are not in the log, and replicas over a lossy downlink do not
// wait for a server (decision 0028).
void DrawRestarts(Random random, RunPlan* plan) {
  if (!random.Chance(0.25)) return;
  std::erase_if(plan->faults, [&](const Fault& fault) {
    return MayKill(fault, plan->idle_timeout) || fault.kind == FaultKind::kTwin;
  });
  const uint64_t restarts = 1 + random.Below(3);
  for (JobPlan& job : plan->jobs) {
    job.durable = true;
    job.barriers = false;
    job.downlink = Downlink::kReliable;
    if (job.policy == LossPolicy::kStale) job.policy = LossPolicy::kZero;
  }
  for (uint64_t i = 0; i < restarts; ++i) {
    const auto job = static_cast<uint32_t>(random.Below(plan->jobs.size()));
    const JobPlan& hit = plan->jobs[job];
    const auto pushes = static_cast<uint32_t>(hit.gate * hit.tensors.size());
    plan->faults.push_back(DrawRestart(random, job, hit.workers, pushes));
  }
}

}  // namespace

std::string TensorPlan::Optimizer() const {
  if (!sgd) return "aggregate";
  std::ostringstream text;
  if (adam == Adam::kNo) {
    text << "sgd:lr=" << lr;
    if (momentum > 0) text << ",momentum=" << momentum;
    return text.str();
  }
  text << (adam == Adam::kL2 ? "adam" : "adamw") << ":lr=" << lr << ",beta1=" << beta1 << ",beta2=" << beta2
       << ",weight_decay=" << weight_decay;
  return text.str();
}

uint32_t TensorPlan::GradientElements(uint32_t chunk_elements) const {
  return chunk_elements * codec::WireRatio(wire);
}

uint32_t TensorPlan::GradientChunks() const { return (chunks - 1) / codec::WireRatio(wire) + 1; }

RunPlan DrawPlan(uint64_t seed) {
  Random random(seed);
  RunPlan plan;
  plan.seed = seed;
  const size_t jobs = random.Chance(0.1) ? 2 : 1;
  for (size_t i = 0; i < jobs; ++i) plan.jobs.push_back(DrawJob(random.Fork(100 + i)));
  plan.idle_timeout = std::chrono::seconds(random.Chance(0.5) ? 10 : 6);
  plan.datagram = ByteCount(OneOf(random, {1200, 1452, 1452}));
  const wan::LinkOptions troubles = DrawTroubles(random);
  uint32_t ranks = kMaxRanks;
  for (const JobPlan& job : plan.jobs) ranks = std::max(ranks, job.workers);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    plan.up.push_back(DrawLink(random, troubles));
    plan.down.push_back(DrawLink(random, troubles));
  }
  DrawProtection(random.Fork(8), &plan);
  DrawInjections(random.Fork(9), &plan);
  DrawFaults(random.Fork(7), &plan);
  DrawRestarts(random.Fork(10), &plan);
  return plan;
}

RunPlan QuietPlan(uint32_t workers) {
  RunPlan plan;
  JobPlan job;
  job.workers = job.min_workers = workers;
  job.rounds = 4;
  job.weights.assign(workers, 1.0f);
  job.start_delays.assign(workers, Duration(0));
  job.tensors = {{.chunks = 20, .tail = 100}, {.chunks = 2, .tail = 8, .sgd = true}};
  plan.jobs = {job};
  wan::LinkOptions link;
  link.rate = Bandwidth::Mbps(50);
  link.delay = milliseconds(10);
  plan.up.assign(std::max(kMaxRanks, workers), link);
  plan.down = plan.up;
  return plan;
}

}  // namespace longhaul::sim
