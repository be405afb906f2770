// What came early for a seg: sums of other nodes, held in units of the pool until the seg's own sum is made.
//
// One unit takes them all, each added to it as it comes; where sums are made in one order (kDeterministic in
// a tree), what came out of its turn waits in units of its own.
#pragma once

#include <cstdint>

#include "offload/engine/buffer_compute.h"
#include "offload/engine/operation.h"
#include "offload/engine/seg_pool.h"
#include "offload/engine/wire.h"

namespace longhaul::offload {

class HeldSums {
 public:
  HeldSums(SegPool* pool, BufferCompute* compute, OffloadStats* stats)
      : pool_(pool), compute_(compute), stats_(stats) {}

  // Nothing is owed to the sender of what is not held (no unit is free): it comes again.
  bool Hold(Operation& op, Seg& seg, const Packet& packet);
  // At the head of what the seg holds; null: none is free.
  SegPool::Unit* TakeUnit(Operation& op, Seg& seg, uint32_t length, bool in_order = true);
  // Who is in the seg's sum from now on.
  static void Enter(Seg& seg, const Header& header);
  // Units go back as soon as their data is in a sum.
  void Release(SegRef* list);

 private:
  bool HoldAlone(Operation& op, Seg& seg, const Packet& packet, bool in_order);
  bool HoldInOrder(Operation& op, Seg& seg, const Packet& packet);
  void SortHeld(Seg& seg);
  void AddFollowers(Operation& op, Seg& seg, uint64_t children);

  SegPool* pool_;
  BufferCompute* compute_;
  OffloadStats* stats_;
};

}  // namespace longhaul::offload
