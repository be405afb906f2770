#include "tests/sim/liveness.h"

#include <algorithm>
#include <vector>

namespace longhaul::sim {
namespace {

constexpr double kFactor = 3;
// Measured over 3,000 seeds: 90 % of the runs need none of it, 3 % more than 2 s, the slowest 13.4 s. A
// sender whose rate the faults have pressed to the floor of 100 kbit/s is among few chunks a round long in
// finding it again: 21.4 s in the slowest of some 20,000 later runs (2 Mbit/s, a queue of two packets, of
// which one in seven overtakes: seed 807659320703).
constexpr Duration kRecovery = std::chrono::seconds(30);
// A whole run, with loss of up to 40 % each way: over 2,000 seeds the longest took a third of what this
// allows.
constexpr double kLossFactor = 15;
constexpr Duration kLossConstant = std::chrono::seconds(40);
// What a sender is pressed to at worst (RateOptions::floor): a quarter of the packets lost and others
// reordered can do that to short rounds, on both ways (seed 20261125020089, 40 % of both).
constexpr double kFloorBits = 100'000;
constexpr uint32_t kLongChunk = 360;  // elements in the largest datagrams
// Headers of longhaul, UDP and IP, repair symbols and ACKs beside a chunk's values.
constexpr double kOverhead = 1.35;

Duration FromSeconds(double s) { return Duration(static_cast<int64_t>(s * 1e9)); }

// How often a packet is sent until it arrives, on the worst of the first links.
double Tries(const std::vector<wan::LinkOptions>& links, uint32_t count) {
  double worst = 0;
  for (uint32_t i = 0; i < count; ++i) worst = std::max(worst, links[i].loss);
  return 1 / (1 - worst);
}

}  // namespace

wan::LinkOptions Healed(wan::LinkOptions link) {
  link.loss = link.loss_burst = link.duplicate = link.reorder = link.corrupt = 0;
  link.jitter = Duration(0);
  link.jitter_reorders = false;
  link.outages.clear();
  return link;
}

Duration LosslessRound(const RunPlan& plan, uint32_t job, uint32_t chunk_elements,
                       std::span<const wan::LinkOptions> up, std::span<const wan::LinkOptions> down) {
  const JobPlan& of = plan.jobs[job];
  double bits = 0;
  for (const TensorPlan& tensor : of.tensors) bits += 32.0 * tensor.chunks * chunk_elements;
  bits *= kOverhead * static_cast<double>(plan.jobs.size());  // which share the links
  // A pull after the push is a round trip more, so is a barrier.
  double trips = 2;
  if (of.downlink == Downlink::kLossy || std::ranges::any_of(of.tensors, &TensorPlan::pull_apart)) trips += 2;
  if (of.barriers) trips += 1;
  Duration slowest{0};
  for (uint32_t rank = 0; rank < of.workers; ++rank) {
    const double sent = bits / static_cast<double>(up[rank].rate.bits_per_second()) +
                        trips / 2 * bits / static_cast<double>(down[rank].rate.bits_per_second());
    const Duration trip = up[rank].delay + down[rank].delay;
    slowest = std::max(slowest, FromSeconds(sent) + trip * static_cast<int64_t>(trips));
  }
  return slowest + of.think;
}

Duration LivenessBound(const RunPlan& plan, uint32_t job, Duration lossless) {
  const JobPlan& of = plan.jobs[job];
  // Where rounds do not wait for a worker that is behind, it may be left out once more before it is back.
  const Duration left_out =
      of.LeavesOut() ? of.round_bound * static_cast<int64_t>(of.rounds - of.gate) : Duration(0);
  return FromSeconds(InSeconds(lossless) * kFactor) + kRecovery + left_out;
}

Duration TimeLimit(const RunPlan& plan) {
  std::vector<wan::LinkOptions> up = plan.up, down = plan.down;
  Duration faults{0};
  for (const Fault& fault : plan.faults) {
    faults += fault.duration + (MayKill(fault, plan.idle_timeout) ? plan.idle_timeout * 3 : Duration(0));
    // Until the silence is heard, and a try fails.
    if (fault.kind == FaultKind::kServerRestart) faults += plan.idle_timeout + std::chrono::seconds(3);
    if (fault.kind != FaultKind::kWeather) continue;
    Weather worst = fault.weather;
    worst.rate = std::min(1.0, worst.rate);
    worst.delay = std::max(1.0, worst.delay);
    if (worst.up) up[fault.rank] = worst.Apply(up[fault.rank]);
    if (worst.down) down[fault.rank] = worst.Apply(down[fault.rank]);
  }
  Duration rounds{0};
  Duration starts{0};
  for (uint32_t job = 0; job < plan.jobs.size(); ++job) {
    const JobPlan& of = plan.jobs[job];
    const double one = InSeconds(LosslessRound(plan, job, kLongChunk, up, down));
    double bits = 0;
    for (const TensorPlan& tensor : of.tensors) bits += 32.0 * tensor.chunks * kLongChunk;
    const double floor = bits / kFloorBits * (Tries(up, of.workers) + Tries(down, of.workers));
    const Duration worst = FromSeconds(one * kLossFactor + floor) + of.round_bound;
    rounds = std::max(rounds, worst * of.rounds);
    starts = std::max(starts, *std::ranges::max_element(of.start_delays));
  }
  return rounds + starts + faults + plan.idle_timeout * 3 + kLossConstant;
}

}  // namespace longhaul::sim
