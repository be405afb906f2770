// How long a node of a ring waits for the sums of those before it, learned from how long they took.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "longhaul/offload.h"
#include "offload/engine/collective.h"
#include "offload/straggler/learned_wait.h"

namespace longhaul::offload {

class StragglerClock {
 public:
  // `node`, which was waited for, came `wait` after everything else was there (0: before that).
  void OnArrival(uint8_t node, Duration wait);
  // It had not come when the wait was over.
  void OnMiss(uint8_t node);
  // None: no end but the message's deadline. Zero: the node is demoted.
  std::optional<Duration> WaitFor(uint8_t node, const JobConfig& job);

  // Enough that the deviation is that of the path and not of the start.
  static constexpr uint32_t kLeastSamples = 16;
  // What a thread that is not running costs on a busy machine is no slow node: 0.1 ms.
  static constexpr Duration kLeastWait = std::chrono::microseconds(100);
  // Misses in a row that demote a node; then every 64th wait is a chance to come back.
  static constexpr uint32_t kDemoteAfter = 16;
  static constexpr uint32_t kProbation = 64;

 private:
  struct Learned {
    LearnedWait wait;
    uint32_t misses = 0;  // in a row
    uint32_t waits = 0;   // while demoted
  };
  static Duration End(const LearnedWait& wait);

  std::array<Learned, kMaxNodes> nodes_;
};

}  // namespace longhaul::offload
