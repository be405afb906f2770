// What a collective is, computed once from the request and its job: everything else follows from it.
#pragma once

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>

#include "longhaul/offload.h"
#include "offload/engine/wire.h"

namespace longhaul::offload {

inline constexpr uint8_t kMaxNodes = 16;  // one bit of the inter-node state each
inline constexpr uint8_t kMaxRanks = 64;
// Times of requests and jobs that are longer count as a year: sums of a few of them do not overflow.
inline constexpr Duration kMostDeadline = std::chrono::hours(24 * 365);

constexpr uint64_t BitOf(uint8_t n) { return uint64_t{1} << n; }
// Whether the message has a result.
constexpr bool Ok(WorkStatus status) {
  return status == WorkStatus::kSuccess || status == WorkStatus::kPartial;
}

// Whether an engine may look at it: what else is wrong with a request its completion tells. Errors:
// kInvalidArgument (no such opcode, flag, route or policy; kConfig without config).
Status CheckRequest(const WorkRequest& request);

struct Collective {
  Opcode opcode = Opcode::kAllReduce;
  ReduceOp op = ReduceOp::kSum;
  DataType type = DataType::kFloat32;
  Route route = Route::kRing;
  uint8_t flags = 0;      // of the request
  uint8_t self = 0;       // this node
  uint8_t root_node = 0;  // kReduce, kBroadcast; a tree's
  uint8_t tree_root = 0;
  uint8_t root_rank = 0;
  uint16_t jid = 0;
  uint32_t mid = 0;
  uint32_t generation = 0;
  uint32_t seg_bytes = 0;
  uint32_t segs = 0;    // n = ceil(length / seg_bytes)
  uint64_t length = 0;  // bytes
  uint64_t nodes = 0;
  uint64_t ranks = 0;     // of this node
  bool reformed = false;  // `nodes` are the job's without those that are out

  bool deterministic() const { return (flags & WorkRequest::kDeterministic) != 0; }
  bool allows_partial() const { return (flags & WorkRequest::kAllowPartial) != 0; }
  // Of a reduce-scatter every share would be another.
  bool CanDoWithout(uint64_t out) const {
    const bool rooted = opcode == Opcode::kReduce || opcode == Opcode::kBroadcast;
    const uint64_t needed =
        BitOf(self) | (rooted ? BitOf(root_node) : 0) | (route == Route::kTree ? BitOf(tree_root) : 0);
    return allows_partial() && opcode != Opcode::kReduceScatter && (out & needed) == 0;
  }
  bool local() const { return nodes == BitOf(self); }
  uint32_t local_ranks() const { return static_cast<uint32_t>(std::popcount(ranks)); }
  // Segments of one data id that arrive here from ranks before the next step.
  uint32_t receive_count() const { return opcode == Opcode::kBroadcast ? 1 : local_ranks(); }
  // Of all nodes, which have as many ranks each (only a reduce-scatter needs to know).
  uint32_t world() const { return local_ranks() * static_cast<uint32_t>(std::popcount(nodes)); }
  // Among the ranks, or the ranks of all nodes.
  uint32_t IndexOf(uint8_t rank) const {
    return static_cast<uint32_t>(std::popcount(ranks & (BitOf(rank) - 1)));
  }
  uint32_t GlobalIndexOf(uint8_t rank) const {
    return local_ranks() * static_cast<uint32_t>(std::popcount(nodes & (BitOf(self) - 1))) + IndexOf(rank);
  }
  // Ranks whose data goes into the sum.
  uint64_t senders() const {
    if (opcode != Opcode::kBroadcast) return ranks;
    return root_node == self ? BitOf(root_rank) & ranks : 0;
  }

  // Segs of one share of a reduce-scatter; of the message for all else.
  uint32_t share_segs() const {
    return opcode == Opcode::kReduceScatter ? (segs + world() - 1) / world() : segs;
  }

  uint64_t OffsetOf(uint32_t sid) const { return uint64_t{sid} * seg_bytes; }
  // The last seg may be shorter.
  uint32_t LengthOf(uint32_t sid) const {
    return static_cast<uint32_t>(std::min<uint64_t>(seg_bytes, length - OffsetOf(sid)));
  }
};

// Where the sums of a seg go.
class SegRoute {
 public:
  SegRoute(const Collective& what, uint32_t sid);

  uint8_t owner() const { return owner_; }
  bool owned_here() const { return owner_ == self_; }
  // The contributions that this node adds its own to before it sends the sum on, or finishes it.
  uint64_t Needed() const;
  // The next node towards the owner.
  uint8_t Next() const { return NextOf(self_); }
  uint8_t NextOf(uint8_t node) const;
  // Steps from the first node of the seg's way; the owner has the most.
  uint32_t PositionOf(uint8_t node) const;
  // Whether this node sends a sum.
  bool Sends() const { return collects_ && !owned_here(); }
  bool collects() const { return collects_; }
  bool distributes() const { return distributes_; }
  // To whom this node sends the result, which `owner` has made; none for operations that leave it there.
  uint64_t ResultTargets(uint8_t owner) const;

 private:
  uint8_t Neighbour(uint8_t node) const;  // in the ring, by number

  Route route_;
  bool collects_;
  bool distributes_;
  uint8_t self_;
  uint8_t owner_;
  uint64_t nodes_;
};

}  // namespace longhaul::offload
