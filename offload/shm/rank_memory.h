// What a rank and the daemon share besides registered memory: the two rings and the words around them.
//
//   rank     requests    ->  daemon
//   rank  <- completions     daemon
//
// The daemon makes it and believes nothing that it reads there (ring.h). The rank trusts the daemon with its
// data, but not with its control flow.
#pragma once

#include <cstdint>

#include "offload/shm/ring.h"
#include "offload/shm/shared_memory.h"
#include "offload/shm/wire_work.h"

namespace longhaul::offload {

struct RankWords {
  SharedWord request_tail;     // the rank's
  SharedWord request_head;     // the daemon's
  SharedWord completion_tail;  // the daemon's
  SharedWord completion_head;  // the rank's
  // Nonzero: the daemon sleeps, and a rank that posts sends a byte through the wake-up socket.
  SharedWord daemon_asleep;
  // Nonzero: the rank wants one byte at the next completion.
  SharedWord rank_waits;
  SharedWord ended;  // nonzero: the daemon has ended this session; it looks at nothing here any more
};

class RankMemory {
 public:
  RankMemory() = default;
  // ring: entries of each ring, a power of two up to 65536. REQUIRES: memory.size() >= BytesOf(ring).
  RankMemory(SharedMemory memory, uint32_t ring) : memory_(std::move(memory)), ring_(ring) {}

  static uint64_t BytesOf(uint32_t ring) {
    return sizeof(RankWords) +
           uint64_t{ring} * (sizeof(SharedEntry<WireRequest>) + sizeof(SharedEntry<WireCompletion>));
  }

  RankWords& words() const { return *reinterpret_cast<RankWords*>(memory_.data()); }
  SharedEntry<WireRequest>* requests() const {
    return reinterpret_cast<SharedEntry<WireRequest>*>(memory_.data() + sizeof(RankWords));
  }
  SharedEntry<WireCompletion>* completions() const {
    return reinterpret_cast<SharedEntry<WireCompletion>*>(requests() + ring_);
  }
  uint32_t ring() const { return ring_; }
  SharedMemory& memory() { return memory_; }

 private:
  SharedMemory memory_;
  uint32_t ring_ = 0;
};

}  // namespace longhaul::offload
