// Execution control: the way of every seg of a message of several nodes.
//
//   kWaiting --(ranks and sums here)--> kSent --(result)--> kResult --(taken by the next)--> kDone
//              the owner of the seg goes from kWaiting to kResult at once
//
// Exactly once: every packet names the nodes that are in its sum. A set that is in already is acknowledged
// and dropped; a disjoint one is added; one that overlaps is refused. A node sends one sum per seg, ever:
// what comes after that is sent on by its sender, whom a redirect tells where to (the cascade). Nothing
// depends on the redirect: without it the sender tries again, and gets another.
#pragma once

#include <cstdint>
#include <optional>

#include "offload/engine/buffer_compute.h"
#include "offload/engine/messages.h"
#include "offload/engine/straggler.h"
#include "offload/engine/transfer.h"

namespace longhaul::offload {

class Execution {
 public:
  Execution(const EngineOptions& options, Messages* messages, ControlStore* store, SegPool* pool,
            DeadlineWheel* wheel, Transfer* transfer, BufferCompute* compute, OffloadStats* stats);

  // Starts ready segs within the window behind the first that is not done. May end the message.
  void Start(Instant now, Operation& op);
  // A packet of a seg of this message, agreed with it. May end the message.
  void OnPacket(Instant now, Operation& op, const Packet& packet);
  void OnSegTimer(Instant now, Operation& op, uint32_t sid);
  // Stops waiting: for anything but the owner (false), or everywhere (true). May end the message.
  void Force(Instant now, Operation& op, bool owners);

  // The packet that was queued, as it is now; 0: it is of no use any more.
  size_t Write(const Transfer::Send& send, MutableByteSpan out);
  Header HeaderOf(const Operation& op, uint32_t sid, PacketKind kind) const;

 private:
  void TrySum(Instant now, Operation& op, uint32_t sid, const Packet* last);
  bool Sum(Instant now, Operation& op, uint32_t sid, const Packet* last);
  // Nothing is owed to the sender of what is not held: it comes again.
  bool Hold(Operation& op, Seg& seg, const Packet& packet);
  bool HoldAlone(Operation& op, Seg& seg, const Packet& packet, bool in_order);
  bool HoldInOrder(Operation& op, Seg& seg, const Packet& packet);
  void SortHeld(Seg& seg);
  void AddFollowers(Operation& op, Seg& seg, uint64_t children);
  // At the head of what the seg holds; null: none is free.
  SegPool::Unit* TakeUnit(Operation& op, Seg& seg, uint32_t length, bool in_order = true);
  // Units go back as soon as their data is in a sum.
  void ReleaseHeld(Seg& seg);
  void KeepFirst(Seg& seg);
  void WaitForStraggler(Instant now, Operation& op, uint32_t sid);
  void Skip(Instant now, Operation& op, uint32_t sid);
  void HaveResult(Instant now, Operation& op, uint32_t sid, const std::byte* data);
  void SendSum(Instant now, Operation& op, uint32_t sid);
  void SendResult(Instant now, Operation& op, uint32_t sid);
  void Arm(Instant due, Operation& op, uint32_t sid);
  void Done(Instant now, Operation& op, uint32_t sid);

  void OnPartial(Instant now, Operation& op, const Packet& packet);
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
  StragglerClock clock_;
};

}  // namespace longhaul::offload
