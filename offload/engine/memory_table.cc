#include "offload/engine/memory_table.h"

namespace longhaul::offload {

// A key is 1 + index in the low half, the generation in the high one; so no key is 0.
Result<uint32_t> MemoryTable::Register(uint8_t rank, std::span<std::byte> memory) {
  if (memory.empty() || memory.data() == nullptr) {
    return Status(StatusCode::kInvalidArgument, "offload: a region without memory");
  }
  size_t at = 0;
  while (at < regions_.size() && !regions_[at].memory.empty()) ++at;
  if (at == kMaxRegions)
    return Status(StatusCode::kResourceExhausted, "offload: 1024 regions are registered");
  if (at == regions_.size()) regions_.emplace_back();
  Region& region = regions_[at];
  region = {rank, static_cast<uint16_t>(region.generation + 1), 0, memory};
  return uint32_t{region.generation} << 16 | static_cast<uint32_t>(at + 1);
}

const MemoryTable::Region* MemoryTable::Get(uint8_t rank, uint32_t key) const {
  const uint32_t at = (key & 0xffff) - 1;
  if (at >= regions_.size()) return nullptr;
  const Region& region = regions_[at];
  const bool right = !region.memory.empty() && region.rank == rank && region.generation == key >> 16;
  return right ? &region : nullptr;
}

Status MemoryTable::Deregister(uint8_t rank, uint32_t key) {
  const Region* const region = Get(rank, key);
  if (region == nullptr) return Status(StatusCode::kNotFound, "offload: no region of this rank has that key");
  if (region->uses > 0) {
    return Status(StatusCode::kFailedPrecondition, "offload: a pending message uses the region");
  }
  regions_[(key & 0xffff) - 1].memory = {};
  return Status::Ok();
}

std::optional<std::span<std::byte>> MemoryTable::Find(uint8_t rank, MemorySlice slice,
                                                      uint64_t length) const {
  const Region* const region = Get(rank, slice.key);
  if (region == nullptr || slice.offset > region->memory.size()) return std::nullopt;
  if (length > region->memory.size() - slice.offset) return std::nullopt;
  return region->memory.subspan(slice.offset, length);
}

void MemoryTable::Use(uint32_t key, bool begin) {
  const uint32_t at = (key & 0xffff) - 1;
  if (at >= regions_.size() || regions_[at].generation != key >> 16) return;
  uint32_t& uses = regions_[at].uses;
  if (begin) {
    ++uses;
  } else if (uses > 0) {
    --uses;
  }
}

void MemoryTable::Forget(uint8_t rank) {
  for (Region& region : regions_) {
    if (region.rank == rank) region.memory = {};
  }
}

}  // namespace longhaul::offload
