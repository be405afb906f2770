#include "offload/ringsim/figures.h"

#include "base/units_text.h"

namespace longhaul::offload::ringsim {
namespace {

constexpr uint32_t kSlowNode = 1;
// Deviations start at half the mean and lose a quarter a round: after 32 rounds they are nothing.
constexpr uint32_t kLearning = 32;

constexpr double kAlphas[] = {1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0, 2.2, 2.4, 2.6, 2.8, 3.0};

double Us(Duration d) { return static_cast<double>(d.count()) / 1e3; }

void Add(double x, double y, Curve* curve) {
  curve->x.push_back(x);
  curve->y.push_back(y);
}

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
  if (with.stuck) return kStuck;
  return 1 -
         static_cast<double>(with.time.count()) / static_cast<double>(RingSim(off).Run(load).time.count());
}

Row RowOf(std::string what, const RingModel& model, const LoadOf& load) {
  // A late part that goes straight to the owner is hidden as long as the ring itself takes.
  const Duration most = 2 * model.nodes * (model.reduce_time + model.transfer());
  const RingSim learned = Learned(model);
  return {std::move(what), SavingOf(model, learned, load(Quoted(model))),
          SavingOf(model, learned, load(Long(model))),
          LargestSaving(model, load, most, most / (model.alpha == 0 ? 500 : 1500))};
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
  const Duration us = paper.reduce_time / 3;
  const auto rule = [&](double alpha) { return With(paper, RingPolicy::kSeedSkip, paper.nodes, alpha); };
  const LoadOf load = OneSlowReduce(paper.nodes);
  PaperFigures figures;
  figures.ring_time.name = "T_ring";
  for (int i = 0; i <= 30; ++i) {
    const RingModel off = With(paper, RingPolicy::kOff, paper.nodes, paper.alpha);
    Add(Us(i * us), Us(RingSim(off).Run(load(i * us)).time), &figures.ring_time);
  }
  for (const double alpha : {1.2, 1.5, 1.8, 2.0, 2.5}) {
    Curve curve{"alpha " + std::to_string(alpha).substr(0, 3), {}, {}};
    for (int i = 0; i <= 60; ++i) Add(Us(i * us / 2), Saving(rule(alpha), load(i * us / 2)), &curve);
    figures.over_slow.push_back(std::move(curve));
  }
  for (const int i : {4, 6, 8, 12, 20, 30}) {
    Curve curve{"dT " + TimeText(i * us), {}, {}};
    for (const double alpha : kAlphas) Add(alpha, Saving(rule(alpha), load(i * us)), &curve);
    figures.over_alpha.push_back(std::move(curve));
  }
  figures.peak_over_alpha.name = "largest saving";
  const Duration most = 3 * (paper.reduce_time + paper.transfer());
  for (const double alpha : kAlphas) {
    Add(alpha, LargestSaving(rule(alpha), load, most, most / 500).saving, &figures.peak_over_alpha);
  }
  figures.at_model = LargestSaving(rule(paper.alpha), load, most, most / 5000);
  figures.quoted = Saving(rule(paper.alpha), load(Quoted(paper)));
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
