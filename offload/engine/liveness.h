// Which nodes still answer. While messages of several nodes are under way, a node that is silent is asked;
// one that does not answer is dead.
//
// When not: for nodes that were never heard (they may not have started), or to find out that a node is slow.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "base/instant.h"
#include "offload/engine/collective.h"
#include "offload/engine/deadline_wheel.h"
#include "offload/engine/messages.h"
#include "offload/engine/transfer.h"

namespace longhaul::offload {

class Liveness {
 public:
  static constexpr uint16_t kSlot = UINT16_MAX - 2;  // in the place of a message's slot in timers
  static constexpr Duration kEvery = std::chrono::milliseconds(100);
  // Questions without an answer, and not time: a process that was not running itself blames no other. Of a
  // link that loses a tenth, 20 datagrams running are lost once in 1e20; a process that is not running for a
  // second is rarer than that on no machine, so it is named, and the others go on.
  static constexpr uint32_t kMost = 10;

  Liveness(const EngineOptions& options, DeadlineWheel* wheel, Transfer* transfer, OffloadStats* stats)
      : options_(options), wheel_(wheel), transfer_(transfer), stats_(stats) {}

  // Messages of several nodes are under way.
  void Watch(Instant now) {
    if (timer_ == DeadlineWheel::kNone) timer_ = wheel_->Add(now + kEvery, uint64_t{kSlot} << 48);
  }
  void OnHeard(Instant now, uint8_t node) { peers_[node] = {now, 0, true}; }
  void Answer(uint8_t node) { Say(PacketKind::kAlive, node); }
  // awaited: nodes of messages that are under way. Returns those that are dead.
  uint64_t OnTimer(Instant now, uint64_t awaited) {
    timer_ = DeadlineWheel::kNone;
    uint64_t dead = 0;
    for (uint64_t rest = awaited & ~BitOf(options_.node); rest != 0; rest &= rest - 1) {
      const auto node = static_cast<uint8_t>(std::countr_zero(rest));
      Peer& peer = peers_[node];
      if (!peer.known || now - peer.heard < kEvery) continue;
      if (peer.unanswered == kMost) {
        dead |= BitOf(node);
        continue;
      }
      ++peer.unanswered;
      Say(PacketKind::kProbe, node);
    }
    if (awaited != 0) Watch(now);
    return dead;
  }

 private:
  struct Peer {
    Instant heard;
    uint32_t unanswered = 0;
    bool known = false;
  };

  void Say(PacketKind kind, uint8_t target) {
    Header header;
    header.kind = kind;
    header.source = options_.node;
    header.nodes = options_.nodes;
    if (!transfer_->QueueAnswer(target, header)) ++stats_->answers_dropped;
  }

  EngineOptions options_;
  DeadlineWheel* wheel_;
  Transfer* transfer_;
  OffloadStats* stats_;
  std::array<Peer, kMaxNodes> peers_{};
  DeadlineWheel::Timer timer_ = DeadlineWheel::kNone;
};

}  // namespace longhaul::offload
