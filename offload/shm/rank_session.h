// The daemon's side of one rank: its rings and its memory, between its engine and what the rank writes.
//
// Everything in shared memory is a stranger's: cursors are checked and entries copied before they are looked
// at (ring.h), a turn takes a bounded number of requests in a bounded time, and no call of the operating
// system is made on what the rank can change.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/instant.h"
#include "offload/port/site_engines.h"
#include "offload/shm/rank_memory.h"

namespace longhaul::offload {

// Memory that several ranks have under one name.
using SharedRegions = std::map<std::string, std::weak_ptr<SharedMemory>, std::less<>>;

class RankSession {
 public:
  // REQUIRES: the rank has no other session; both outlive this. Errors: kResourceExhausted.
  static Result<std::unique_ptr<RankSession>> Open(SiteEngines* engines, SharedRegions* shared, uint8_t node,
                                                   uint8_t rank, uint64_t max_bytes);
  // For the others the rank has died; its memory is unmapped.
  ~RankSession();
  RankSession(const RankSession&) = delete;
  RankSession& operator=(const RankSession&) = delete;

  uint8_t node() const { return node_; }
  uint8_t rank() const { return rank_; }
  RankMemory& memory() { return memory_; }

  // Hands requests to the engine, for at most one slice. True: there were some.
  bool TakeRequests(Instant now);
  // Hands completions to the rank, as far as its ring has room. True: there were some.
  bool GiveCompletions();
  // Whether a sleeping rank is to be woken, once per wish of it.
  bool TakeNotification();
  void SetAsleep(bool asleep);
  bool HasRequests() const;
  // Why the session has to end; empty: it need not.
  const std::string& broken() const { return broken_; }

  // Zeros that rank and daemon map, registered. name: with the ranks of this site that give the same one.
  // Errors: kInvalidArgument (no bytes; the name has memory of another size), kResourceExhausted (the rank's
  // share of regions or bytes, the system's memory).
  struct Allocated {
    uint32_t key = 0;
    uint64_t bytes = 0;
    FileDescriptor fd;
  };
  Result<Allocated> Allocate(uint64_t bytes, std::string_view name);
  // Errors: kNotFound, kFailedPrecondition (pending requests use it).
  Status Deregister(uint32_t key);

 private:
  RankSession(SiteEngines* engines, SharedRegions* shared, uint8_t node, uint8_t rank, uint64_t max_bytes)
      : engines_(engines), shared_(shared), node_(node), rank_(rank), max_bytes_(max_bytes) {}

  Engine& engine() { return engines_->engine(node_); }
  Result<std::shared_ptr<SharedMemory>> MemoryOf(uint64_t bytes, const std::string& name);
  size_t MostRegions() const;
  bool Take(Instant now, const WireRequest& wire);
  bool IsBeyondMemory(const WorkRequest& request) const;
  size_t MostMessages() const;
  // kSuccess: the engine may have it.
  WorkStatus Enter(const WorkRequest& request);
  void Leave(const Completion& completion);
  void Refuse(const WorkRequest& request, WorkStatus status);
  void Break(std::string why) { broken_ = std::move(why); }

  SiteEngines* engines_;
  SharedRegions* shared_;
  uint8_t node_;
  uint8_t rank_;
  uint64_t max_bytes_;
  uint64_t bytes_ = 0;
  RankMemory memory_;
  RingReader<WireRequest> requests_;
  RingWriter<WireCompletion> completions_;
  std::map<uint32_t, std::shared_ptr<SharedMemory>> regions_;
  struct Message {
    uint64_t id = 0;
    uint32_t requests = 0;  // that are not completed
  };
  std::vector<Message> messages_;
  std::vector<Completion> batch_;  // on their way out
  std::string broken_;
};

}  // namespace longhaul::offload
