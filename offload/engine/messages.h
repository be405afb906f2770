// The life of messages at this node: begun by a request or a packet, joined by ranks, ended once, with a
// completion for every request.
#pragma once

#include <cstdint>
#include <vector>

#include "base/instant.h"
#include "offload/engine/completions.h"
#include "offload/engine/control_store.h"
#include "offload/engine/deadline_wheel.h"
#include "offload/engine/memory_table.h"
#include "offload/engine/seg_pool.h"

namespace longhaul::offload {

// Of one engine.
struct EngineOptions {
  uint8_t node = 0;
  uint64_t nodes = 1;  // those that exist, bit per node
  uint64_t ranks = 1;  // those of this node; none: an aggregator
  uint32_t seg_bytes = 1024;
  uint32_t pool_segs = 512;
  uint32_t window_segs = 128;
  uint32_t queue_depth = 256;
  uint64_t max_message_bytes = uint64_t{1} << 30;
  uint64_t scratch_bytes = uint64_t{256} << 20;
  // Its configurations for other devices have numbers above it. Grows from process to process of a node (ns
  // since 1970): else a device that lives on takes those of a restarted one for old.
  uint64_t config_number = 0;
};

class Messages {
 public:
  Messages(const EngineOptions& options, ControlStore* store, SegPool* pool, DeadlineWheel* wheel,
           OffloadStats* stats);

  MemoryTable& memory() { return memory_; }
  CompletionQueue& completions(uint8_t rank) { return queues_[rank]; }
  const CompletionQueue& completions(uint8_t rank) const { return queues_[rank]; }

  // What the request says, with its job's values where it names none.
  Collective Describe(const WorkRequest& request) const;
  // kSuccess: this device can serve such a message.
  WorkStatus Check(const Collective& what) const;
  // Null: there is no room.
  Operation* Begin(Instant now, const Collective& what);
  // Enters the rank's memory and request; from then on its segs of [first, end) miss it no longer.
  WorkStatus Join(Instant now, Operation& op, uint8_t rank, const WorkRequest& request, const JobConfig& job);

  // They are delivered and passed on. May end the message.
  void OnSegsDone(Instant now, Operation& op, uint32_t first, uint32_t count);
  // Ends it with a completion for every request.
  void End(Instant now, Operation& op, WorkStatus status);
  // That rank's requests end as kFlushed; the message goes on.
  void Flush(Instant now, Operation& op, uint8_t rank);
  // Ends it as if it had never been, without a request.
  void Discard(Operation& op);
  // The message's timer, kept for its deadline and its stages.
  void ArmDeadline(Operation& op, Instant due);

  // A completion that is not for a request of a message.
  void Complete(uint8_t rank, Completion completion);
  Completion Progress(Instant now, const Operation& op, Instant posted) const;

  static uint64_t TimerOf(const Operation& op, uint32_t sid);
  static constexpr uint32_t kMessageTimer = UINT32_MAX;  // in the place of a seg

 private:
  WorkStatus EnterMemory(Operation& op, uint8_t rank, const WorkRequest& request);
  bool MakeScratch(Operation& op);
  void GiveBack(Operation& op);

  EngineOptions options_;
  ControlStore* store_;
  SegPool* pool_;
  DeadlineWheel* wheel_;
  OffloadStats* stats_;
  MemoryTable memory_;
  std::vector<CompletionQueue> queues_;
  uint64_t scratch_in_use_ = 0;
};

}  // namespace longhaul::offload
