// Who is late again and again, and therefore a leaf: it begins and owns no chunk and adds nothing for others,
// but sends its own parts straight to the owners.
//
// Nodes need not use the same leaves for a message: each engine decides for itself, from what the results say
// of late nodes. They agree as a rule, since all see the same results (docs/explanation/ring.md).
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "offload/straggler/ring_order.h"

namespace longhaul::offload {

class Demotion {
 public:
  static constexpr uint32_t kRounds = 3;      // late in so many running: a leaf
  static constexpr uint32_t kProbation = 64;  // rounds, doubled each time, after which it may try again
  static constexpr uint32_t kLeastMembers = 2;

  // After each message: `late`, the union of RingHop::late() over all nodes and chunks.
  void OnRound(Contributors nodes, Contributors late) {
    for (uint32_t node = 0; node < kMaxRingNodes; ++node) {
      if ((nodes & Bit(node)) != 0) Judge(state_[node], nodes, node, (late & Bit(node)) != 0);
    }
  }
  Contributors leaves() const { return leaves_; }

 private:
  struct State {
    uint32_t late = 0;  // rounds running
    uint32_t demotions = 0;
    uint32_t left = 0;  // rounds as a leaf
  };

  void Judge(State& state, Contributors nodes, uint32_t node, bool late) {
    if ((leaves_ & Bit(node)) != 0) {
      if (--state.left == 0) leaves_ &= ~Bit(node);
      return;
    }
    state.late = late ? state.late + 1 : 0;
    const auto members = static_cast<uint32_t>(std::popcount(nodes & ~leaves_));
    if (state.late < kRounds || members <= kLeastMembers) return;
    leaves_ |= Bit(node);
    state.late = kRounds - 1;  // back on trial: the first late round makes it a leaf again
    state.left = kProbation << (state.demotions < 6 ? state.demotions++ : 6);
  }

  std::array<State, kMaxRingNodes> state_ = {};
  Contributors leaves_ = 0;
};

}  // namespace longhaul::offload
