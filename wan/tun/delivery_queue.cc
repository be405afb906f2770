#include "wan/tun/delivery_queue.h"

#include <algorithm>
#include <functional>

#include "base/check.h"

namespace longhaul::wan {

DeliveryQueue::DeliveryQueue(size_t max_packets, size_t max_size)
    : max_packets_(max_packets), max_size_(max_size) {}

std::optional<uint32_t> DeliveryQueue::Acquire() {
  if (free_.empty()) {
    const size_t made = blocks_.size() * kSlotsPerBlock;
    if (made >= max_packets_) return std::nullopt;
    blocks_.push_back(std::make_unique<uint8_t[]>(kSlotsPerBlock * max_size_));
    const size_t count = std::min<size_t>(kSlotsPerBlock, max_packets_ - made);
    for (size_t i = count; i > 0; --i) free_.push_back(static_cast<uint32_t>(made + i - 1));
  }
  const uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

MutableByteSpan DeliveryQueue::Buffer(uint32_t slot) {
  return {blocks_[slot / kSlotsPerBlock].get() + (slot % kSlotsPerBlock) * max_size_, max_size_};
}

void DeliveryQueue::Push(Instant due, uint32_t slot, uint32_t destination, size_t size) {
  LH_CHECK_OP(size, <=, max_size_);
  heap_.push_back({due, next_sequence_++, slot, destination, size});
  std::ranges::push_heap(heap_, std::greater<>());
}

DeliveryQueue::Item DeliveryQueue::Pop() {
  LH_CHECK(!heap_.empty());
  std::ranges::pop_heap(heap_, std::greater<>());
  const Item item = heap_.back();
  heap_.pop_back();
  return item;
}

}  // namespace longhaul::wan
