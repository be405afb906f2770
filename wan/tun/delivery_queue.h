// Packets on their way: a bounded pool of buffers and a heap of due times.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "base/instant.h"

namespace longhaul::wan {

class DeliveryQueue {
 public:
  // At most `max_packets` of at most `max_size` bytes. Memory is taken in blocks as it is first needed.
  DeliveryQueue(size_t max_packets, size_t max_size);

  // A free buffer of max_size bytes, or nothing when the bound is reached. Ends in Push() or Release().
  std::optional<uint32_t> Acquire();
  void Release(uint32_t slot) { free_.push_back(slot); }
  MutableByteSpan Buffer(uint32_t slot);

  // The first `size` bytes of the buffer are due at `due`. Equal times keep the order of the calls.
  void Push(Instant due, uint32_t slot, uint32_t destination, size_t size);

  struct Item {
    Instant due;
    uint64_t sequence = 0;
    uint32_t slot = 0;
    uint32_t destination = 0;
    size_t size = 0;
    bool operator>(const Item& o) const { return due != o.due ? due > o.due : sequence > o.sequence; }
  };
  bool empty() const { return heap_.empty(); }
  size_t size() const { return heap_.size(); }
  // Infinite when empty.
  Instant NextDue() const { return heap_.empty() ? Instant::Infinite() : heap_.front().due; }
  // Takes the earliest. The buffer stays the caller's until Release(). REQUIRES: !empty().
  Item Pop();

 private:
  static constexpr uint32_t kSlotsPerBlock = 256;

  size_t max_packets_;
  size_t max_size_;
  std::vector<std::unique_ptr<uint8_t[]>> blocks_;
  std::vector<uint32_t> free_;
  std::vector<Item> heap_;
  uint64_t next_sequence_ = 0;
};

}  // namespace longhaul::wan
