#include "server/tensor/held_values.h"

#include <algorithm>
#include <utility>

namespace longhaul::server {

// Slot 0 is no slot: it ends lists.
uint32_t HeldValues::TakeSlot() {
  if (free_ == 0) {
    const auto first = static_cast<uint32_t>(blocks_.size()) * kSlots;
    blocks_.push_back(
        {ZeroedArray<float>(size_t{kSlots} * elements_), std::vector<Entry>(kSlots, Entry{0, 0, 0, 0})});
    for (uint32_t slot = first + kSlots; slot-- > std::max(first, 1u);) {
      mutable_entry(slot).next = std::exchange(free_, slot);
    }
  }
  return std::exchange(free_, entry(free_).next);
}

void HeldValues::Insert(uint32_t* first, const Entry& entry_to_be, std::span<const float> values) {
  const uint32_t slot = TakeSlot();
  Block& block = blocks_[slot / kSlots];
  std::ranges::copy(values, block.values.data() + size_t{slot % kSlots} * elements_);
  uint32_t* link = first;
  while (*link != 0 && entry(*link).rank <= entry_to_be.rank) link = &mutable_entry(*link).next;
  mutable_entry(slot) = entry_to_be;
  mutable_entry(slot).next = std::exchange(*link, slot);
  ++size_;
}

void HeldValues::Release(uint32_t* first) {
  while (*first != 0) {
    const uint32_t slot = std::exchange(*first, entry(*first).next);
    mutable_entry(slot).next = std::exchange(free_, slot);
    --size_;
  }
}

}  // namespace longhaul::server
