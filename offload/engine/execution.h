// Execution control: the way of every seg of a message of several nodes.
//
//   kWaiting --(ranks and sums here)--> kSent --(result)--> kResult --(taken by the next)--> kDone
//              the owner of the seg goes from kWaiting to kResult at once
//
// Exactly once: every packet names the nodes that are in its sum. A set that is in already is acknowledged
// and dropped; a disjoint one is added; one that overlaps is refused. A node makes one sum per seg, ever:
// what comes after that goes on as it is. A sum is with one node at a time: whoever has acknowledged it
// answers for it until the next one has. What waits for what is RingHop's (offload/straggler), also in a
// tree.
//
// Owners that are late again and again (leaf_demote): each node decides for itself whom it takes for a leaf.
// The last one before such an owner claims the seg; the owner leaves it to the first that does, once. Sums
// lead forward in the ring to the owner, and from there to the new one, so none comes back.
#pragma once

#include <cstdint>
#include <optional>

#include "offload/engine/buffer_compute.h"
#include "offload/engine/held_sums.h"
#include "offload/engine/late_sums.h"
#include "offload/engine/messages.h"
#include "offload/engine/transfer.h"

namespace longhaul::offload {

class Execution {
 public:
  Execution(const EngineOptions& options, Messages* messages, ControlStore* store, SegPool* pool,
            DeadlineWheel* wheel, Transfer* transfer, BufferCompute* compute, OffloadStats* stats);

  // Starts ready segs within the window behind the first that is not done. May end the message.
  void Start(Instant now, Operation& op);
  // The same for a message that this packet has begun here.
  void BeginFrom(Instant now, Operation& op, const Header& header);
  // A packet of a seg of this message, agreed with it. May end the message.
  void OnPacket(Instant now, Operation& op, const Packet& packet);
  void OnSegTimer(Instant now, Operation& op, uint32_t sid);
  // Stops waiting: for anything but the owner (false), or everywhere (true). May end the message.
  void Force(Instant now, Operation& op, bool owners);

  // The packet that was queued, as it is now; 0: it is of no use any more.
  size_t Write(Instant now, const Transfer::Send& send, MutableByteSpan out, uint8_t* target);

 private:
  void Open(Instant now, Operation& op);
  void OpenSeg(Instant now, Operation& op, uint32_t sid);
  void TrySum(Instant now, Operation& op, uint32_t sid);
  void GoOn(Instant now, Operation& op, uint32_t sid, const Packet* last);
  bool Sum(Instant now, Operation& op, uint32_t sid, const Packet* last);

  // Late sums, and those who are told of them.
  void SendOwnPart(Instant now, Operation& op, uint32_t sid);
  bool CanGoOnWithoutRanks(const Operation& op, const Seg& seg) const;
  void SendLate(Instant now, Operation& op, uint32_t sid);
  void ArmSeg(Instant now, Operation& op, uint32_t sid);
  bool HasTimer(const Operation& op, uint32_t sid) const;
  void SendClaim(Instant now, Operation& op, uint32_t sid);

  void HaveResult(Instant now, Operation& op, uint32_t sid, const std::byte* data);
  void SendSum(Instant now, Operation& op, uint32_t sid);
  void SendResult(Instant now, Operation& op, uint32_t sid);
  void Arm(Instant due, Operation& op, uint32_t sid);
  void Done(Instant now, Operation& op, uint32_t sid);

  void OnPartial(Instant now, Operation& op, const Packet& packet);
  void OnLate(Instant now, Operation& op, const Packet& packet);
  void OnGoneOn(Instant now, Operation& op, const Header& header);
  void OnClaim(Instant now, Operation& op, const Header& header);
  void OnOwner(Instant now, Operation& op, const Header& header);
  void TakeOver(const Operation& op, Seg& seg);
  void OnResult(Instant now, Operation& op, const Packet& packet);
  void TakeResult(Instant now, Operation& op, uint32_t sid, const Header& header, ByteSpan payload);
  void OnAckPartial(Instant now, Operation& op, const Header& header);
  void OnAckResult(Instant now, Operation& op, const Header& header);
  void OnRedirect(Instant now, Operation& op, const Header& header);
  void Answer(const Operation& op, const Header& to, PacketKind kind, uint8_t root = 0);
  const std::byte* DataOf(const Operation& op, uint32_t sid) const;

  EngineOptions options_;
  Messages* messages_;
  ControlStore* store_;
  SegPool* pool_;
  DeadlineWheel* wheel_;
  Transfer* transfer_;
  BufferCompute* compute_;
  OffloadStats* stats_;
  HeldSums held_;
  LateSums late_;
};

}  // namespace longhaul::offload
