#include "offload/engine/deadline_wheel.h"

#include <algorithm>
#include <utility>

namespace longhaul::offload {

DeadlineWheel::DeadlineWheel(uint32_t capacity) : entries_(capacity) {
  heads_.fill(kNone);
  for (uint32_t i = capacity; i-- > 0;) {
    entries_[i].next = free_;
    free_ = i;
  }
}

DeadlineWheel::Timer DeadlineWheel::Add(Instant due, uint64_t what) {
  if (free_ == kNone) return kNone;
  const Timer timer = free_;
  Entry& entry = entries_[timer];
  free_ = entry.next;
  // What is due already lies in the slot that is looked at first.
  const auto slot = static_cast<uint16_t>(std::max(TickOf(due), tick_) % kSlots);
  entry = {due, what, heads_[slot], kNone, slot, true};
  if (entry.next != kNone) entries_[entry.next].previous = timer;
  heads_[slot] = timer;
  occupied_[slot / 64] |= uint64_t{1} << slot % 64;
  ++size_;
  return timer;
}

void DeadlineWheel::Cancel(Timer& name) {
  const Timer timer = std::exchange(name, kNone);
  if (timer == kNone || !entries_[timer].armed) return;
  Entry& entry = entries_[timer];
  if (entry.next != kNone) entries_[entry.next].previous = entry.previous;
  (entry.previous == kNone ? heads_[entry.slot] : entries_[entry.previous].next) = entry.next;
  if (heads_[entry.slot] == kNone) occupied_[entry.slot / 64] &= ~(uint64_t{1} << entry.slot % 64);
  entry.armed = false;
  entry.next = free_;
  free_ = timer;
  --size_;
}

std::optional<uint64_t> DeadlineWheel::Expire(Instant now) {
  const int64_t end = TickOf(now);
  // A turn visits every slot; more would visit them again.
  if (end - tick_ >= static_cast<int64_t>(kSlots)) tick_ = end - static_cast<int64_t>(kSlots) + 1;
  for (;; ++tick_) {
    if (size_ == 0) tick_ = std::max(tick_, end);
    for (Timer t = heads_[static_cast<size_t>(tick_) % kSlots]; t != kNone; t = entries_[t].next) {
      if (entries_[t].due > now) continue;
      const uint64_t what = entries_[t].what;
      Cancel(t);
      return what;
    }
    if (tick_ >= end) return std::nullopt;
  }
}

Instant DeadlineWheel::Next() const {
  Instant earliest = Instant::Infinite();
  for (size_t i = 0; i < kSlots && size_ > 0; ++i) {
    const size_t slot = (static_cast<size_t>(tick_) + i) % kSlots;
    if (i > 0 && slot % 64 == 0 && occupied_[slot / 64] == 0) {
      i += 63;
      continue;
    }
    for (Timer t = heads_[slot]; t != kNone; t = entries_[t].next) {
      earliest = std::min(earliest, entries_[t].due);
    }
    // Nothing in a later slot of this turn is earlier.
    if (!earliest.IsInfinite() && TickOf(earliest) <= tick_ + static_cast<int64_t>(i)) break;
  }
  return earliest;
}

}  // namespace longhaul::offload
