// The control-information store: jobs, messages under way, and how the last ones ended.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "offload/engine/operation.h"
#include "offload/straggler/demotion.h"

namespace longhaul::offload {

class ControlStore {
 public:
  static constexpr uint32_t kMaxJobs = 16;       // as many as the application's 4 bits tell apart
  static constexpr uint32_t kMaxMessages = 64;   // at a time; a word of bits
  static constexpr uint32_t kRemembered = 1024;  // ended messages of a job

  // A slot keeps the tables of a message of at most so many segs: 4.5 MiB with 144 bytes a seg, 288 MiB of
  // all.
  static constexpr uint32_t kKeptSegs = 32768;
  // What messages that packets have begun may have before a rank here has posted them: a packet of 1 KiB may
  // speak of one with 148 MiB of tables. What is refused comes again. Three messages of kKeptSegs.
  static constexpr uint64_t kUnpostedBytes = uint64_t{16} << 20;
  static constexpr uint32_t kUnpostedMessages = kMaxMessages * 3 / 4;
  // What a thread that is not running costs on a busy machine is no slow node: 0.1 ms.
  static constexpr Duration kLeastSlack = std::chrono::microseconds(100);

  // What a job has learned of its ring.
  struct RingMemory {
    Deadlines deadlines{Deadlines::kFirst, kLeastSlack};
    Demotion demotion;
  };

  // How a message ended.
  struct Ended {
    uint32_t mid = 0;
    uint32_t generation = 0;
    WorkStatus status = WorkStatus::kSuccess;
    bool valid = false;
  };

  // Replaces the job's configuration. False: kMaxJobs have messages under way.
  bool Configure(uint16_t jid, const JobConfig& config);
  // The same, of another node. Nothing changes, and true, when a configuration of that number or a higher one
  // of the same source has come: the network repeats and reorders packets.
  bool ConfigureFrom(uint8_t source, uint64_t number, uint16_t jid, const JobConfig& config);
  // Null: not configured.
  const JobConfig* FindJob(uint16_t jid) const;

  RingMemory* FindRing(uint16_t jid);

  // Nodes that have died since the job was configured: it goes on without them until it is configured anew.
  uint64_t OutOf(uint16_t jid) const;
  // Of that job, or of all; returns those that were not out of it.
  uint64_t PutOut(uint64_t nodes, std::optional<uint16_t> jid);

  Operation* Find(uint16_t jid, uint32_t mid);
  Operation* At(uint16_t slot) { return slots_[slot].get(); }
  // A fresh entry for `what`; null: kMaxMessages are under way. REQUIRES: Find is null.
  Operation* Begin(const Collective& what);
  // Whether a packet may begin one of so many segs. `always`: segs for which there is room if there is no
  // other.
  bool MayBeginUnposted(uint64_t segs, uint64_t always) const;
  // Frees the slot, and remembers how the message ended; none: forgets it.
  void End(Operation& op, std::optional<WorkStatus> status);
  // Of that message, or, when it is too old to be remembered, an Ended of its kind (kFlushed, any
  // generation).
  std::optional<Ended> FindEnded(uint16_t jid, uint32_t mid) const;

  // Bit per slot with a message.
  uint64_t live() const { return live_; }
  // Nodes of messages of several that were posted here.
  uint64_t Awaited() const;

 private:
  struct Job {
    bool used = false;
    uint16_t jid = 0;
    JobConfig config;
    uint64_t out = 0;
    RingMemory ring;
    std::array<uint64_t, kMaxNodes> numbers{};  // of the last configuration that each node has sent
    uint32_t messages = 0;                      // under way
    uint64_t last_use = 0;
    uint32_t newest = 0;  // message that ended
    bool any_ended = false;
    std::vector<Ended> ended;  // by the low bits of mid
    bool IsTooOld(uint32_t mid) const {
      return any_ended && static_cast<int32_t>(newest - mid) >= static_cast<int32_t>(kRemembered);
    }
  };
  Job* JobOf(uint16_t jid);
  const Job* JobOf(uint16_t jid) const { return const_cast<ControlStore*>(this)->JobOf(jid); }

  std::array<Job, kMaxJobs> jobs_;
  std::array<std::unique_ptr<Operation>, kMaxMessages> slots_;
  std::array<uint64_t, kMaxMessages> keys_{};
  uint64_t live_ = 0;
  uint64_t uses_ = 0;
};

}  // namespace longhaul::offload
