// Messages that have ended here because no rank had joined them. What still comes of one does not begin it
// again before there was nothing of it for as long as another node's may live: two nodes without a rank in a
// message would pass its sums on to each other for ever, each beginning it anew after its end. A rank that
// posts the message begins it at any time.
//
// Bounded: of two in one place the later one is remembered.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "base/instant.h"
#include "offload/engine/collective.h"
#include "offload/engine/transfer.h"
#include "offload/engine/wire.h"
#include "offload/straggler/learned_wait.h"

namespace longhaul::offload {

class Orphans {
 public:
  // As many as ended ones of a job (ControlStore::kRemembered).
  static constexpr uint32_t kRemembered = 1024;

  // How long such a message stays after its last packet.
  static Duration Life(const JobConfig& job) { return 2 * job.deadline; }

  void OnEnd(Instant now, const Collective& what, const JobConfig& job) {
    PlaceOf(what.jid, what.mid) = {now + Quiet(job), what.mid, what.generation, what.jid};
  }
  // Whether a packet of it comes too soon; then the quiet begins anew.
  bool Refuses(Instant now, const Header& h, const JobConfig& job) {
    Entry& entry = PlaceOf(h.jid, h.mid);
    const bool this_one = entry.jid == h.jid && entry.mid == h.mid && h.generation <= entry.generation;
    if (!this_one || now >= entry.until) return false;
    entry.until = now + Quiet(job);
    return true;
  }

 private:
  // The longest until another node's orphan, or what it has begun at all others in turn, says something.
  static Duration Quiet(const JobConfig& job) {
    return Life(job) + Transfer::kMostTimeout + LearnedWait::kMost * std::popcount(job.nodes);
  }

  struct Entry {
    Instant until;
    uint32_t mid = 0;
    uint32_t generation = 0;
    uint16_t jid = 0;
  };
  // Jobs that number their messages alike have places of their own: 16 of 64 messages.
  Entry& PlaceOf(uint16_t jid, uint32_t mid) { return entries_[(mid + jid * 64u) % kRemembered]; }

  std::array<Entry, kRemembered> entries_{};
};

}  // namespace longhaul::offload
