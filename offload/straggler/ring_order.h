// Who takes part in a chunk's ring, in which order, and which of them are in a sum.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace longhaul::offload {

// Nodes whose data a sum holds: bit per node. The exactly-once rule is written in these alone.
using Contributors = uint32_t;
inline constexpr uint32_t kMaxRingNodes = 32;

constexpr Contributors Bit(uint32_t node) { return Contributors{1} << node; }

// How a sum that comes in meets those that came before it.
enum class Meeting : uint8_t {
  kDisjoint,   // may be added
  kDuplicate,  // all of it is there already: drop it
  kOverlap,    // a part of it is there, and cannot be taken out again: refuse it
};

constexpr Meeting Meet(Contributors there, Contributors incoming) {
  if ((there & incoming) == 0) return Meeting::kDisjoint;
  return (incoming & ~there) == 0 ? Meeting::kDuplicate : Meeting::kOverlap;
}

// The ring of one chunk: position 0 begins, each position sends to the next, the last one owns the sum.
// Leaves take no position: they send their part straight to the owner.
struct RingOrder {
  std::array<uint8_t, kMaxRingNodes> nodes = {};  // by position
  uint32_t size = 0;
  uint8_t home = 0;  // the node that would own the sum if there were no leaves
  Contributors leaves = 0;

  uint32_t owner() const { return size - 1; }  // its position
  Contributors Before(uint32_t position) const {
    Contributors set = 0;
    for (uint32_t p = 0; p < position; ++p) set |= Bit(nodes[p]);
    return set;
  }
  Contributors All() const { return Before(size) | leaves; }
};

// Chunk `chunk` of a ring over `nodes` (bits): rotated, so that ownership and the begin go round; then
// `leaves` leave their positions to those behind them, and the ownership to the one before them: so nodes
// that do not agree on the leaves agree on all else. REQUIRES: a node that is no leaf.
inline RingOrder MakeRingOrder(Contributors nodes, Contributors leaves, uint32_t chunk) {
  RingOrder order;
  order.leaves = nodes & leaves;
  const auto count = static_cast<uint32_t>(std::popcount(nodes));
  uint32_t index = 0;
  for (uint32_t node = 0; node < kMaxRingNodes; ++node) {
    if ((nodes & Bit(node)) == 0) continue;
    order.nodes[(index + count - chunk % count) % count] = static_cast<uint8_t>(node);
    ++index;
  }
  order.home = order.nodes[count - 1];
  for (uint32_t at = 0; at < count; ++at) {
    if ((leaves & Bit(order.nodes[at])) == 0) order.nodes[order.size++] = order.nodes[at];
  }
  return order;
}

}  // namespace longhaul::offload
