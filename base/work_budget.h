// How much of a tensor may be worked on before the thread has to look at its socket again, in elements of
// float32. Encoding takes 1.5 to 4 ns an element (bench/longest_event.cc), so a slice of 64 Ki elements, 256
// KiB, takes 0.1 to 0.3 ms, and less than 2 ms where it touches memory for the first time; what is paid once
// a turn of the event loop, about 5 us, is 5 % at most. With 128 Ki more than half of the runs were above 2
// ms.
#pragma once

#include <algorithm>
#include <cstdint>

namespace longhaul {

class WorkBudget {
 public:
  static constexpr uint64_t kSliceElements = 64 * 1024;
  // Bookkeeping of one chunk without looking at its elements costs about as much as so many of them: 50 to
  // 100 ns to submit or describe it, 10 ns for a step of the ranking.
  static constexpr uint64_t kPerChunk = 32;
  static constexpr uint64_t kPerRankedChunk = 4;

  // The most that an event uses: a slice, the step that overran it, and the chunks of one datagram (24 with
  // FEC, for 1,500 bytes).
  static constexpr uint64_t kMostOfAnEvent = kSliceElements + 32 * 1024;

  explicit WorkBudget(uint64_t elements = kSliceElements) : limit_(elements) {}
  static WorkBudget Everything() { return WorkBudget(UINT64_MAX); }
  bool spent() const { return used_ >= limit_; }
  uint64_t left() const { return limit_ - std::min(limit_, used_); }
  // May be more than there was: a step is not divided.
  uint64_t used() const { return used_; }
  void Spend(uint64_t elements) { used_ += elements; }

 private:
  uint64_t limit_;
  uint64_t used_ = 0;
};

}  // namespace longhaul
