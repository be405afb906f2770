// Contributions that wait for their turn in a chunk's sum: lists by rank, in slots that are used again. Slots
// lie in blocks of 192, so that neither the first nor the millionth takes long to make or to drop: 259 KiB
// with the 345 elements of a chunk of 1392 bytes, 48 MiB with the longest chunks, of which only what is used
// is touched (base/zeroed_array.h).
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/zeroed_array.h"

namespace longhaul::server {

class HeldValues {
 public:
  struct Entry {
    uint32_t rank;
    float weight;
    float scale;
    uint32_t next;  // 0: the last
  };

  // elements: of the longest chunk.
  explicit HeldValues(uint32_t elements) : elements_(elements) {}

  // Copies the values into the list that begins at *first (0: an empty one), behind lower ranks. Throws
  // std::bad_alloc, with nothing changed.
  void Insert(uint32_t* first, const Entry& entry, std::span<const float> values);
  const Entry& entry(uint32_t slot) const { return block(slot).entries[slot % kSlots]; }
  std::span<const float> values(uint32_t slot) const {
    return block(slot).values.span().subspan(size_t{slot % kSlots} * elements_, elements_);
  }
  // Empties the list.
  void Release(uint32_t* first);
  // Of all lists.
  size_t size() const { return size_; }

 private:
  static constexpr uint32_t kSlots = 192;
  struct Block {
    ZeroedArray<float> values;
    std::vector<Entry> entries;
  };
  const Block& block(uint32_t slot) const { return blocks_[slot / kSlots]; }
  Entry& mutable_entry(uint32_t slot) { return blocks_[slot / kSlots].entries[slot % kSlots]; }
  uint32_t TakeSlot();

  uint32_t elements_;
  std::deque<Block> blocks_;
  uint32_t free_ = 0;  // a list
  size_t size_ = 0;
};

}  // namespace longhaul::server
