// One node's device, without clock, sockets and threads: requests of ranks and packets of other engines go
// in, completions and packets come out. It calls nothing of its owner.
//
//   event         Post, HandlePacket, HandleTimeout, RankGone, NodeGone
//   work          Advance, until it says that nothing is left
//   what is next  Poll, PollTransmit, TakeNotification, NextTimeout
//
// One thread at a time. Memory is bounded by the options; nothing is allocated per seg. Not for data that
// must survive the process, and no protection against a forger: ports that cross machines seal their
// datagrams.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/instant.h"
#include "offload/engine/aborts.h"
#include "offload/engine/configuring.h"
#include "offload/engine/execution.h"
#include "offload/engine/liveness.h"
#include "offload/engine/messages.h"
#include "offload/engine/ordinary.h"
#include "offload/engine/orphans.h"

namespace longhaul::offload {

class Engine {
 public:
  // Errors: kInvalidArgument names the option.
  static Status Validate(const EngineOptions& options);
  // REQUIRES: Validate(options).ok(). Throws std::bad_alloc.
  explicit Engine(const EngineOptions& options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Result<uint32_t> Register(uint8_t rank, std::span<std::byte> memory);
  Status Deregister(uint8_t rank, uint32_t key);

  // Errors (nothing is taken): kInvalidArgument, kResourceExhausted; see Device::Post.
  Status Post(Instant now, uint8_t rank, const WorkRequest& request);
  size_t Poll(uint8_t rank, std::span<Completion> completions);
  void RequestNotify(uint8_t rank) { messages_.completions(rank).Arm(); }
  // Whether that rank is to be notified, once.
  bool TakeNotification(uint8_t rank) { return messages_.completions(rank).TakeNotification(); }
  // Whether it has asked and not been notified.
  bool IsWaiting(uint8_t rank) const { return messages_.completions(rank).armed(); }

  enum class Verdict : uint8_t {
    kTaken,
    kOrdinary,  // not an engine's packet: the owner passes it on as it is
  };
  Verdict HandlePacket(Instant now, ByteSpan datagram);
  void HandleTimeout(Instant now);
  Instant NextTimeout() const { return wheel_.Next(); }
  // Its memory is not touched any more; its requests end as kFlushed, messages that need it as kPeerDead.
  void RankGone(Instant now, uint8_t rank);
  // Its ranks have all gone: messages that need this node end as kPeerDead.
  bool IsDeserted() const { return options_.ranks != 0 && (options_.ranks & ~gone_) == 0; }
  // It is dead: messages with it end as kPeerDead, and jobs go on without it until they are configured anew.
  void NodeGone(Instant now, uint8_t node);
  // It is another process now: what the old one had acknowledged is gone.
  void NodeRestarted(Instant now, uint8_t node);

  // Reduces about so many bytes of input; true: there is more to do.
  bool Advance(Instant now, uint64_t budget_bytes);

  struct Outgoing {
    uint8_t target = 0;
    size_t bytes = 0;
  };
  // The next packet, written to `out` (at least kHeaderBytes + seg_bytes).
  std::optional<Outgoing> PollTransmit(Instant now, MutableByteSpan out);

  OffloadStats stats() const;
  const EngineOptions& options() const { return options_; }

 private:
  static bool IsCollective(Opcode opcode) { return opcode <= Opcode::kBroadcast; }

  void PostCollective(Instant now, uint8_t rank, const WorkRequest& request);
  WorkStatus JoinMessage(Instant now, uint8_t rank, const WorkRequest& request);
  void PostQuery(Instant now, uint8_t rank, const WorkRequest& request);
  void PostCancel(Instant now, uint8_t rank, const WorkRequest& request);
  void Refuse(uint8_t rank, const WorkRequest& request, WorkStatus status);

  void OnMessagePacket(Instant now, const Packet& packet);
  Operation* BeginFromPacket(Instant now, const Packet& packet);
  void AnswerForEnded(const Header& header, const ControlStore::Ended& ended);
  void OnAbort(Instant now, Operation& op, const Header& header);
  // Where two nodes do not agree on the dead, the one that knows fewer ends its message. True: that was it.
  bool TellsOfDeath(Instant now, const Operation& op, const Header& header);
  // Else it is counted, and its sender gets the reason.
  bool Agrees(const Collective& what, const Packet& packet);
  void Abort(uint8_t target, Header header, WorkStatus status);
  // Ends the message here, and tells the others so and the `dead`.
  void Fail(Instant now, Operation& op, WorkStatus status, uint64_t dead = 0);
  // Ends messages, of all jobs or one, that need one of these nodes.
  void EndWith(Instant now, uint64_t nodes, std::optional<uint16_t> jid);
  // The same, and the jobs go on without them.
  void NodesOut(Instant now, uint64_t nodes, std::optional<uint16_t> jid);
  void OnLivenessTimer(Instant now);
  void OnMessageTimer(Instant now, Operation& op);
  // One burst of a message whose ranks are all here; the bytes of its sources.
  uint64_t ReduceBurst(Instant now, Operation& op);

  EngineOptions options_;
  OffloadStats stats_;
  SegPool pool_;
  DeadlineWheel wheel_;
  Transfer transfer_;
  ControlStore store_;
  BufferCompute compute_;
  Messages messages_;
  Execution execution_;
  Ordinary ordinary_;
  Configuring configuring_;
  Aborts aborts_;
  Liveness liveness_;
  Orphans orphans_;
  uint64_t gone_ = 0;  // ranks that have gone, and have registered nothing since
  uint32_t turn_ = 0;  // slot whose turn it is
};

}  // namespace longhaul::offload
