// How long a node of a ring waits for the node before it, by the position in the chunk's ring.
//
// Learned: the mean wait at that position (EWMA, gain 1/8) plus a slack, the larger of a fifth of a hop's
// time and four mean deviations (gain 1/4). That is max(1.2 x, mean + 4 deviations) of the hop that is late,
// and not alpha T: in software a hop takes longer than the reduce, so T is the wrong unit. The slack does not
// grow along the ring: what a node that gave up sends is in time for the next one.
#pragma once

#include <array>
#include <cstdint>

#include "longhaul/units.h"
#include "offload/straggler/learned_wait.h"
#include "offload/straggler/ring_order.h"

namespace longhaul::offload {

class Deadlines {
 public:
  // Learned; `first` until kLeastSamples. There is always one: a late sender may pass a node over that has
  // not learned what the sender has, and that node must not wait for ever.
  // `least`: of the slack, and a quarter of it for each position: clocks that are read a little late do not
  // make the next node give up what this one sends at its deadline.
  explicit Deadlines(Duration first = kFirst, Duration least = Duration(0)) : first_(first), least_(least) {}
  // Fixed ones (the rule of the paper): alpha T + transfer after the node before should have begun.
  static Deadlines Fixed(Duration reduce_time, double alpha, Duration transfer);
  // The same rule where T is not known: so long after the node before has usually begun; 0: learned.
  void SetWait(Duration wait) { wait_ = wait; }

  // From the node's own start of the chunk. Position 0 waits for its own part only.
  Duration At(uint32_t position) const;
  // What the wait usually is; 0: not known.
  Duration Usual(uint32_t position) const {
    return learned_[position].samples() < kLeastSamples ? Duration(0) : learned_[position].mean();
  }
  // alpha T of fixed ones: a node that takes longer skips its successor.
  Duration threshold() const { return threshold_; }
  bool fixed() const { return hop_.count() != 0; }

  // The node before was heard `wait` after the start (position 0: the own part was here).
  void OnArrival(uint32_t position, Duration wait);
  // Nothing came until the deadline. It counts as the wait: the real one is longer and unknown, and a path
  // that has become slower must be learned. Above a third of all waits deadlines grow: a node that is always
  // slow is a case for Demotion.
  void OnTimeout(uint32_t position);

  static constexpr uint32_t kLeastSamples = 8;
  static constexpr Duration kFirst = LearnedWait::kMost;

 private:
  std::array<LearnedWait, kMaxRingNodes> learned_ = {};
  Duration first_;
  Duration least_;
  Duration wait_{0};
  Duration threshold_{0};
  Duration transfer_{0};
  Duration hop_{0};  // of fixed ones; 0: learned
};

}  // namespace longhaul::offload
