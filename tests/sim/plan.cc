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
  if (tensor.sgd && random.Chance(0.5)) {
    tensor.initial_offers = static_cast<uint32_t>(random.Below(uint64_t{1} << workers));
  }
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

JobPlan DrawJob(Random random) {
  JobPlan job;
  job.seed = random.Next();
  job.workers = random.Chance(0.1) ? 1 : Between(random, 2, kMaxRanks);
  job.min_workers = random.Chance(0.6) ? job.workers : Between(random, 1, job.workers);
  job.rounds = Between(random, 3, random.Chance(0.2) ? 10 : 5);
  job.policy = OneOf(random, {LossPolicy::kResidual, LossPolicy::kResidual, LossPolicy::kZero,
                              LossPolicy::kCount, LossPolicy::kStale});
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

}  // namespace

std::string TensorPlan::Optimizer() const {
  if (!sgd) return "aggregate";
  std::ostringstream text;
  text << "sgd:lr=" << lr;
  if (momentum > 0) text << ",momentum=" << momentum;
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
  for (uint32_t rank = 0; rank < kMaxRanks; ++rank) {
    plan.up.push_back(DrawLink(random, troubles));
    plan.down.push_back(DrawLink(random, troubles));
  }
  Random chance = random.Fork(7);
  const uint64_t faults = chance.Chance(0.5) ? 0 : 1 + chance.Below(2);
  for (uint64_t i = 0; i < faults; ++i) {
    const auto job = static_cast<uint32_t>(chance.Below(jobs));
    const JobPlan& hit = plan.jobs[job];
    const auto pushes = static_cast<uint32_t>(hit.rounds * hit.tensors.size());
    plan.faults.push_back(DrawFault(chance, job, hit.workers, pushes, plan.idle_timeout));
  }
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
  plan.up.assign(kMaxRanks, link);
  plan.down.assign(kMaxRanks, link);
  return plan;
}

std::string RunPlan::ToString() const {
  std::ostringstream out;
  out << "seed " << seed << ", idle time-out " << std::chrono::duration<double>(idle_timeout).count()
      << " s, datagrams of " << datagram.value() << "\n";
  for (size_t j = 0; j < jobs.size(); ++j) {
    const JobPlan& job = jobs[j];
    out << "job " << j << ": " << job.workers << " workers (at least " << job.min_workers << "), "
        << job.rounds << " rounds, policy " << NameOf(job.policy)
        << (job.policy == LossPolicy::kShift ? " " + std::to_string(job.shift_alpha) : "") << ", high "
        << job.high_share << ", ratio " << job.close_ratio << ", threshold " << job.bubble_threshold
        << ", fec k " << int{job.fec_k} << " depth " << int{job.fec_depth}
        << (job.deterministic ? ", sums in rank order" : "");
    if (job.downlink == Downlink::kLossy)
      out << ", lossy downlink with a hash every " << job.hash_rounds << " rounds";
    if (job.LeavesOut()) {
      out << ", stragglers beyond " << job.straggler_factor << " times or "
          << std::chrono::duration<double>(job.round_bound).count() << " s";
    }
    out << "\n";
    for (const TensorPlan& t : job.tensors) {
      out << "  tensor: " << t.chunks << " chunks, the last of " << t.tail << ", " << t.Optimizer()
          << (t.pull_apart ? ", push + pull" : ", push-pull") << (t.sparse ? ", sparse" : "") << ", "
          << DTypeName(t.wire) << ", initial values from mask " << t.initial_offers << "\n";
    }
    for (uint32_t rank = 0; rank < job.workers; ++rank) {
      out << "  rank " << rank << ": weight " << job.weights[rank] << ", starts at "
          << std::chrono::duration<double>(job.start_delays[rank]).count() << " s, up " << up[rank].ToString()
          << ", down " << down[rank].ToString() << "\n";
    }
  }
  for (const Fault& fault : faults) out << "fault: " << fault.ToString() << "\n";
  return out.str();
}

}  // namespace longhaul::sim
