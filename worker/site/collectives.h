// The relay's collectives: their numbers, and how many are under way. One begins when all of its ranks wait
// for it, so that it is short, and its number is among the newest.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>

#include "worker/site/mailbox.h"

namespace longhaul::site {

class Collectives {
 public:
  // deadline: for a rank that does not answer.
  Collectives(Mailbox* mailbox, const SiteShape& shape, uint64_t leader, Duration deadline)
      : mailbox_(*mailbox),
        shape_(shape),
        own_{NodeOfLeader(leader), shape.relay_slot()},
        job_(JobOfLeader(leader)),
        deadline_(deadline) {}

  // Runs `begin` as soon as one more may be under way.
  void Queue(std::function<void()> begin);

  struct What {
    offload::Opcode opcode = offload::Opcode::kReduce;
    Place root;
    uint64_t ranks = 0;  // of the site, without the relay
    uint64_t length = 0;
    offload::MemorySlice send;
    offload::MemorySlice receive;
  };
  using OnDone = std::function<void(const offload::Completion&)>;
  // Its number. In a function that Queue runs.
  uint32_t Begin(const What& what, OnDone on_done);
  void OnCompletion(const offload::Completion& completion);
  // One of its ranks is not in it: it ends at once as `why`. True: that is news.
  bool OnRefused(uint8_t rank, uint32_t mid, offload::WorkStatus why);
  // All end, within a second, and nothing learns of it; none begins any more.
  void EndAll();
  // Those that any of these ranks is in end at once, as kCancelled.
  void Cancel(uint64_t ranks);

  // Of messages: who of that node is in a collective of these ranks, and which nodes are.
  uint64_t SlotsOf(uint64_t ranks, uint8_t node) const;
  uint64_t NodesOf(uint64_t ranks) const { return shape_.NodesOf(ranks) | uint64_t{1} << own_.node; }
  const SiteShape& shape() const { return shape_; }
  Place own() const { return own_; }

 private:
  void RunQueue();

  struct UnderWay {
    uint64_t ranks = 0;
    OnDone on_done;
    std::optional<offload::WorkStatus> refused;
  };

  Mailbox& mailbox_;
  const SiteShape shape_;
  const Place own_;
  const uint16_t job_;
  const Duration deadline_;
  uint32_t next_ = 1;
  std::map<uint32_t, UnderWay> under_way_;
  std::deque<std::function<void()>> queue_;
};

}  // namespace longhaul::site
