#include "offload/ringsim/figures.h"

namespace longhaul::offload::ringsim {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

constexpr uint32_t kSlowNode = 1;
// Deviations start at half the mean and lose a quarter a round: after 32 rounds they are nothing.
constexpr uint32_t kLearning = 32;
constexpr Duration kQuoted = microseconds(8);

double Us(Duration d) { return static_cast<double>(d.count()) / 1e3; }

LoadOf OneSlowReduce(uint32_t nodes) {
  return [nodes](Duration extra) { return RingLoad::Slow(nodes, kSlowNode, 0, extra); };
}
LoadOf EveryReduceSlow(uint32_t nodes) {
  return [nodes](Duration extra) { return RingLoad::AlwaysSlow(nodes, kSlowNode, extra); };
}
LoadOf HostLate(uint32_t nodes) {
  return [nodes](Duration extra) { return RingLoad::LateHost(nodes, kSlowNode, extra); };
}

RingSim Learned(const RingModel& model) {
  RingSim sim(model);
  if (model.alpha == 0) sim.Learn(kLearning, Duration(0), 1);
  return sim;
}

double SavingOf(const RingModel& model, const RingSim& learned, const RingLoad& load) {
  RingModel off = model;
  off.policy = RingPolicy::kOff;
  RingSim sim = learned;
  // A node must have been late for a while before it is a leaf.
  for (uint32_t round = 0; model.policy == RingPolicy::kLeafDemote && round < Demotion::kRounds; ++round)
    sim.Run(load);
  const RingOutcome with = sim.Run(load);
  if (with.stuck) return 0;
  return 1 -
         static_cast<double>(with.time.count()) / static_cast<double>(RingSim(off).Run(load).time.count());
}

Row RowOf(std::string what, const RingModel& model, const LoadOf& load) {
  // A late part that goes straight to the owner is hidden as long as the ring itself takes.
  const Duration most = 2 * model.nodes * (model.reduce_time + model.transfer());
  const RingSim learned = Learned(model);
  return {std::move(what), SavingOf(model, learned, load(kQuoted)),
          SavingOf(model, learned, load(microseconds(100))),
          LargestSaving(model, load, most, model.alpha == 0 ? nanoseconds(250) : nanoseconds(50))};
}

RingModel With(RingModel model, RingPolicy policy, uint32_t nodes, double alpha) {
  model.policy = policy;
  model.nodes = nodes;
  model.alpha = alpha;
  return model;
}

}  // namespace

double Saving(const RingModel& model, const RingLoad& load) { return SavingOf(model, Learned(model), load); }

Peak LargestSaving(const RingModel& model, const LoadOf& load, Duration most, Duration step) {
  const RingSim learned = Learned(model);
  Peak peak;
  for (Duration extra(0); extra <= most; extra += step) {
    const double saving = SavingOf(model, learned, load(extra));
    if (saving > peak.saving + 1e-9) peak = {saving, extra};
  }
  return peak;
}

PaperFigures ReproducePaper(const RingModel& paper) {
  const RingModel model = With(paper, RingPolicy::kSeedSkip, paper.nodes, paper.alpha);
  const LoadOf load = OneSlowReduce(model.nodes);
  PaperFigures figures;
  const RingModel off = With(model, RingPolicy::kOff, model.nodes, model.alpha);
  figures.ring_time.name = "T_ring";
  for (Duration extra(0); extra <= microseconds(30); extra += microseconds(1)) {
    figures.ring_time.x.push_back(Us(extra));
    figures.ring_time.y.push_back(Us(RingSim(off).Run(load(extra)).time));
  }
  for (const double alpha : {1.2, 1.5, 1.8, 2.0, 2.5}) {
    Curve curve{"alpha " + std::to_string(alpha).substr(0, 3), {}, {}};
    const RingModel at = With(model, RingPolicy::kSeedSkip, model.nodes, alpha);
    for (Duration extra(0); extra <= microseconds(30); extra += nanoseconds(250)) {
      curve.x.push_back(Us(extra));
      curve.y.push_back(Saving(at, load(extra)));
    }
    figures.over_slow.push_back(std::move(curve));
  }
  for (const int us : {4, 6, 8, 12, 20, 30}) {
    Curve curve{"dT " + std::to_string(us) + " us", {}, {}};
    for (int tenths = 11; tenths <= 30; ++tenths) {
      curve.x.push_back(tenths / 10.0);
      curve.y.push_back(
          Saving(With(model, RingPolicy::kSeedSkip, model.nodes, tenths / 10.0), load(microseconds(us))));
    }
    figures.over_alpha.push_back(std::move(curve));
  }
  figures.peak_over_alpha.name = "largest saving";
  for (int tenths = 11; tenths <= 30; ++tenths) {
    const RingModel at = With(model, RingPolicy::kSeedSkip, model.nodes, tenths / 10.0);
    figures.peak_over_alpha.x.push_back(tenths / 10.0);
    figures.peak_over_alpha.y.push_back(LargestSaving(at, load, microseconds(20), nanoseconds(50)).saving);
  }
  figures.at_model = LargestSaving(model, load, microseconds(20), nanoseconds(5));
  figures.quoted = Saving(model, load(kQuoted));
  return figures;
}

std::vector<Row> WhatItHides(const RingModel& paper) {
  const RingModel one = With(paper, RingPolicy::kSeedSkip, 4, paper.alpha);
  RingModel all = one;
  all.all_chunks = true;
  RingModel engine = all;
  engine.one_engine = true;
  RingModel whole = one;
  whole.all_gather = true;
  RingModel everything = engine;
  everything.all_gather = true;
  std::vector<Row> rows = {
      RowOf("reduce-scatter of one chunk", one, OneSlowReduce(4)),
      RowOf("all four chunks", all, OneSlowReduce(4)),
      RowOf("all four chunks, one reduce engine a node", engine, OneSlowReduce(4)),
      RowOf("one chunk, with its all-gather", whole, OneSlowReduce(4)),
      RowOf("all-reduce: four chunks, one engine, all-gather", everything, OneSlowReduce(4)),
      RowOf("all four chunks, slow in every reduce", all, EveryReduceSlow(4)),
  };
  for (const uint32_t nodes : {8, 16, 32}) {
    rows.push_back(RowOf("one chunk, " + std::to_string(nodes) + " nodes",
                         With(one, RingPolicy::kSeedSkip, nodes, paper.alpha), OneSlowReduce(nodes)));
  }
  return rows;
}

std::vector<Row> OtherPolicies(const RingModel& paper) {
  std::vector<Row> rows;
  for (const uint32_t nodes : {4, 8, 16}) {
    const std::string of = ", " + std::to_string(nodes) + " nodes";
    const RingModel cascade = With(paper, RingPolicy::kCascade, nodes, 0);
    RingModel all = cascade;
    all.all_chunks = true;
    rows.push_back(RowOf("cascade: one slow reduce, one chunk" + of, cascade, OneSlowReduce(nodes)));
    rows.push_back(RowOf("cascade: one slow reduce, all chunks" + of, all, OneSlowReduce(nodes)));
    rows.push_back(RowOf("cascade: a late host, all chunks" + of, all, HostLate(nodes)));
    all.policy = RingPolicy::kSelfSkip;
    rows.push_back(RowOf("self-skip: a late host, all chunks" + of, all, HostLate(nodes)));
    all.policy = RingPolicy::kLeafDemote;
    rows.push_back(RowOf("leaf: slow in every reduce" + of, all, EveryReduceSlow(nodes)));
  }
  return rows;
}

}  // namespace longhaul::offload::ringsim
