#include "offload/engine/seg_pool.h"

#include <algorithm>

#include "base/check.h"

namespace longhaul::offload {
namespace {
constexpr size_t kCacheLine = 64;
constexpr size_t kOwners = 64;
}  // namespace

SegPool::SegPool(uint32_t units, uint32_t seg_bytes)
    : memory_(size_t{units} * seg_bytes + kCacheLine), units_(units), held_(kOwners, 0) {
  LH_CHECK_OP(units, <, uint32_t{SegRef::kNoIndex});
  LH_CHECK_OP(seg_bytes % kCacheLine, ==, size_t{0});
  const size_t skew = reinterpret_cast<uintptr_t>(memory_.data()) % kCacheLine;
  std::byte* const first = memory_.data() + (skew == 0 ? 0 : kCacheLine - skew);
  free_.reserve(units);
  for (uint32_t i = units; i-- > 0;) {
    units_[i].data = first + size_t{i} * seg_bytes;
    free_.push_back(static_cast<uint16_t>(i));
  }
}

bool SegPool::HasRoom(uint16_t owner, Turn turn) const {
  const uint32_t keep = turn == Turn::kNow ? 0 : size() / (turn == Turn::kAfterRanks ? 4 : 2);
  const uint32_t share = turn == Turn::kOutOfOrder ? 3 : 1;
  return free_.size() > keep && held_[owner] * share <= free_.size();
}

std::optional<SegRef> SegPool::Take(uint16_t owner, Turn turn) {
  if (!HasRoom(owner, turn)) return std::nullopt;
  const uint16_t index = free_.back();
  free_.pop_back();
  Unit& unit = units_[index];
  unit.taken = true;
  unit.owner = owner;
  unit.next = {};
  unit.tries = 0;
  ++held_[owner];
  most_ = std::max(most_, in_use());
  return SegRef{index, unit.generation};
}

SegPool::Unit* SegPool::Find(SegRef ref) {
  if (ref.index >= units_.size()) return nullptr;
  Unit& unit = units_[ref.index];
  return unit.taken && unit.generation == ref.generation ? &unit : nullptr;
}

void SegPool::Release(SegRef ref) {
  Unit* const unit = Find(ref);
  if (unit == nullptr) return;
  unit->taken = false;
  ++unit->generation;
  --held_[unit->owner];
  free_.push_back(ref.index);
}

void SegPool::ReleaseAllOf(uint16_t owner) {
  for (uint16_t i = 0; i < units_.size() && held_[owner] > 0; ++i) {
    if (units_[i].taken && units_[i].owner == owner) Release({i, units_[i].generation});
  }
}

}  // namespace longhaul::offload
