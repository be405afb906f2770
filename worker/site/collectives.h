// The relay's collectives: their numbers, and how many are under way. One begins when all of its ranks wait
// for it, so that it is short, and its number is among the newest.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>

#include "worker/site/mailbox.h"

namespace longhaul::site {

class Collectives {
 public:
  // A rank may have eight messages open (offload/shm/rank_session.cc).
  static constexpr size_t kMost = 6;

  // deadline: for a rank that does not answer.
  Collectives(Mailbox* mailbox, uint8_t own_rank, Duration deadline)
      : mailbox_(*mailbox), own_rank_(own_rank), deadline_(deadline) {}

  // Runs `begin` as soon as one more may be under way.
  void Queue(std::function<void()> begin);

  struct What {
    offload::Opcode opcode = offload::Opcode::kReduce;
    uint8_t root = 0;
    uint64_t ranks = 0;  // without the relay's own
    uint64_t length = 0;
    offload::MemorySlice send;
    offload::MemorySlice receive;
  };
  using OnDone = std::function<void(const offload::Completion&)>;
  // Its number. In a function that Queue runs.
  uint32_t Begin(const What& what, OnDone on_done);
  void OnCompletion(const offload::Completion& completion);

  // Of messages: with the relay's own rank.
  uint64_t WithOwn(uint64_t ranks) const { return ranks | uint64_t{1} << own_rank_; }
  uint8_t own_rank() const { return own_rank_; }

 private:
  void RunQueue();

  Mailbox& mailbox_;
  const uint8_t own_rank_;
  const Duration deadline_;
  uint32_t next_ = 1;
  std::map<uint32_t, OnDone> under_way_;
  std::deque<std::function<void()>> queue_;
};

}  // namespace longhaul::site
