// Late sums of other nodes, which go on as they are: each in a unit of the pool until the node that it is
// sent to has it; and the notices that save others a wait.
#pragma once

#include <cstdint>

#include "base/instant.h"
#include "offload/engine/operation.h"
#include "offload/engine/seg_pool.h"
#include "offload/engine/transfer.h"

namespace longhaul::offload {

class LateSums {
 public:
  LateSums(SegPool* pool, Transfer* transfer, OffloadStats* stats)
      : pool_(pool), transfer_(transfer), stats_(stats) {}

  // A late sum, to a node that still waits. False: there is no unit for it.
  bool PassOn(Instant now, Operation& op, const Packet& packet);
  void PassOnHeld(Seg& seg, uint8_t target, uint32_t missing);
  // Those whose time has come.
  void Send(Instant now, Operation& op, uint32_t sid);
  // When the first is to be sent again.
  Instant Next(const Seg& seg) const;
  // True: the answer is about one of them.
  bool OnAck(Instant now, Seg& seg, const Header& answer);
  bool OnRedirect(Seg& seg, const Header& answer);
  // Its data, and what a packet says of it; null: it is gone.
  const std::byte* Describe(SegRef unit, Header* header, uint8_t* target) const;

  // Where a late sum of `set` goes, by its position; the nodes that it goes past do not wait for it.
  uint8_t Aim(Operation& op, uint32_t sid, uint32_t position, uint64_t set);
  // That this node has gone on.
  void Tell(Operation& op, uint32_t sid, uint8_t target, uint32_t missing, uint64_t past);

 private:
  SegRef* Find(Seg& seg, const Header& answer);

  SegPool* pool_;
  Transfer* transfer_;
  OffloadStats* stats_;
};

}  // namespace longhaul::offload
