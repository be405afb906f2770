// Completions of one rank, in order. Every accepted request has a place kept for it, so none is ever lost.
#pragma once

#include <cstdint>
#include <vector>

#include "longhaul/offload.h"

namespace longhaul::offload {

class CompletionQueue {
 public:
  explicit CompletionQueue(uint32_t depth) : ring_(depth) {}

  // A place for a request; false: the queue is full of requests and completions.
  bool Reserve() {
    if (reserved_ + count_ == ring_.size()) return false;
    ++reserved_;
    return true;
  }
  // REQUIRES: a place was reserved.
  void Push(const Completion& completion);
  bool Pop(Completion* completion);

  // The next completion (or one that is there) is announced once.
  void Arm() { armed_ = true; }
  bool TakeNotification();
  bool armed() const { return armed_; }

  uint32_t waiting() const { return count_; }
  uint32_t reserved() const { return reserved_; }

 private:
  std::vector<Completion> ring_;
  uint32_t first_ = 0;
  uint32_t count_ = 0;
  uint32_t reserved_ = 0;
  bool armed_ = false;
};

}  // namespace longhaul::offload
