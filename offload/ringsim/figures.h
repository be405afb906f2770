// What is published of the ring with a slow node: the paper's four figures, and what they do not show.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "offload/ringsim/ring_sim.h"

namespace longhaul::offload::ringsim {

// The load in which something is slow by `extra`.
using LoadOf = std::function<RingLoad(Duration extra)>;

inline constexpr double kStuck = -1;  // for a saving: the ring never ends

// Of the time that policy off takes under the same load: 0.25 is a quarter less. Deadlines that are learned
// are learned before, without slow nodes.
double Saving(const RingModel& model, const RingLoad& load);

struct Peak {
  double saving = 0;  // 0..1
  Duration at{0};     // the dT there
};
// The largest saving over dT, from 0 to `most` in steps of `step`.
Peak LargestSaving(const RingModel& model, const LoadOf& load, Duration most, Duration step);

struct Curve {
  std::string name;
  std::vector<double> x;
  std::vector<double> y;
};

// The paper's T is 3 us; its dT of 8 us and the axes are taken in that measure, so that another T shows the
// same.
constexpr Duration Quoted(const RingModel& model) { return model.reduce_time * 8 / 3; }
constexpr Duration Long(const RingModel& model) { return model.reduce_time * 100 / 3; }

// Times in us, savings 0..1. The slow node is B, the second of chunk 0's ring.
struct PaperFigures {
  Curve ring_time;                // policy off, over dT
  std::vector<Curve> over_slow;   // saving over dT, a curve an alpha
  std::vector<Curve> over_alpha;  // saving over alpha, a curve a dT
  Curve peak_over_alpha;          // the largest saving over alpha
  Peak at_model;                  // the largest one at the model's alpha
  double quoted = 0;              // saving at Quoted()
};
PaperFigures ReproducePaper(const RingModel& model);

struct Row {
  std::string what;
  double at_quoted = 0;  // saving at Quoted()
  double at_long = 0;    // saving at Long()
  Peak peak;             // dT from 0 to twice what the ring takes
};
// What the largest saving of the paper hides: the same rule, seen further away.
std::vector<Row> WhatItHides(const RingModel& model);
// What the product's policies save, by number of nodes. Deadlines are learned.
std::vector<Row> OtherPolicies(const RingModel& model);

}  // namespace longhaul::offload::ringsim
