#include "transport/core/window/part_assembly.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace longhaul::transport {
namespace {

constexpr size_t Units(size_t bytes) { return (bytes + wire::kPartUnit - 1) / wire::kPartUnit; }

}  // namespace

PartAssembly::Verdict PartAssembly::Add(const wire::DataHeader& header, const wire::PartHeader& part,
                                        ByteSpan bytes, const IsOver& is_over) {
  LH_CHECK(header.part && part.Fits(bytes.size()));
  Chunk* const chunk = FindOrBegin(header, part.total, is_over);
  if (chunk == nullptr) return Verdict::kNoRoom;
  if (chunk->bytes.size() != part.total) return Verdict::kInvalid;
  chunk->header.last_of_window = chunk->header.last_of_window || header.last_of_window;
  std::ranges::copy(bytes, chunk->bytes.begin() + part.offset);
  new_units_.clear();
  const size_t first = part.offset / wire::kPartUnit;
  for (size_t unit = first; unit < first + Units(bytes.size()); ++unit) {
    if (chunk->units.Set(static_cast<uint32_t>(unit))) new_units_.push_back(static_cast<uint32_t>(unit));
  }
  return chunk->units.count() == chunk->units.size() ? Verdict::kWhole : Verdict::kKept;
}

PartAssembly::Chunk* PartAssembly::FindOrBegin(const wire::DataHeader& header, size_t total,
                                               const IsOver& is_over) {
  Pool& pool = PoolOf(header);
  const Name name = NameOf(header);
  if (const auto it = pool.chunks.find(name); it != pool.chunks.end()) return &it->second;
  const size_t cost = std::max(kMinCost, sizeof(Chunk) + total + Units(total) / 8);
  if (!MakeRoom(pool, cost, is_over)) return nullptr;
  Chunk& chunk = pool.chunks[name];
  chunk.header = header;
  chunk.header.part = false;
  chunk.bytes.resize(total);
  chunk.units = ChunkBitmap(static_cast<uint32_t>(Units(total)));
  chunk.cost = cost;
  pool.bytes += cost;
  return &chunk;
}

// A few chunks at a time, so that a full pool costs a packet no more than that.
bool PartAssembly::MakeRoom(Pool& pool, size_t cost, const IsOver& is_over) {
  for (int look = 0; look < kLooks && pool.bytes + cost > pool.limit; ++look) {
    auto next = pool.chunks.upper_bound(pool.hand);
    if (next == pool.chunks.end()) next = pool.chunks.begin();
    pool.hand = next->first;
    const bool over = is_over(next->second.header);
    if (!over && next->first.reliability != wire::ReliabilityClass::kLow) continue;
    if (!over) ++dropped_;
    Erase(pool, next);
  }
  return pool.bytes + cost <= pool.limit;
}

void PartAssembly::Erase(Pool& pool, std::map<Name, Chunk>::iterator chunk) {
  pool.bytes -= chunk->second.cost;
  pool.chunks.erase(chunk);
}

PartAssembly::Whole PartAssembly::whole(const wire::DataHeader& header) {
  const Chunk& chunk = PoolOf(header).chunks.at(NameOf(header));
  return {chunk.header, chunk.bytes};
}

void PartAssembly::Release(const wire::DataHeader& header) {
  Pool& pool = PoolOf(header);
  const auto it = pool.chunks.find(NameOf(header));
  LH_CHECK(it != pool.chunks.end());
  released_.push_back(std::move(it->second.bytes));
  Erase(pool, it);
}

void PartAssembly::TakeBack(const wire::DataHeader& header) {
  Chunk& chunk = PoolOf(header).chunks.at(NameOf(header));
  for (const uint32_t unit : new_units_) chunk.units.Clear(unit);
}

void PartAssembly::Forget(WindowKey key) {
  for (Pool* pool : {&high_, &other_}) {
    auto it = pool->chunks.lower_bound({key, 0, wire::ReliabilityClass::kHigh, false});
    while (it != pool->chunks.end() && it->first.key == key) Erase(*pool, it++);
  }
}

}  // namespace longhaul::transport
