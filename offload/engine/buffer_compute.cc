#include "offload/engine/buffer_compute.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "offload/reduce/reduce.h"

namespace longhaul::offload {

bool BufferCompute::Supports(ReduceOp op, DataType type) {
  alignas(8) std::byte value[8] = {};
  const std::byte* const source = value;
  return SizeOf(type) > 0 && Reduce(op, type, {&source, 1}, 1, value).ok();
}

uint32_t BufferCompute::BurstSegs(const Operation& op) {
  return std::max<uint32_t>(1, kBurstBytes / op.what.seg_bytes);
}

uint64_t BufferCompute::BytesOf(const Operation& op, uint32_t first, uint32_t count) {
  return uint64_t{count - 1} * op.what.seg_bytes + op.what.LengthOf(first + count - 1);
}

void BufferCompute::Sum(const Operation& op, uint32_t first, uint32_t count,
                        std::span<const std::byte* const> externals, std::byte* out) {
  std::array<const std::byte*, kMaxNodes + kMaxRanks> sources;
  size_t k = 0;
  for (const std::byte* const data : externals) sources[k++] = data;
  for (uint64_t rest = op.Present(first); rest != 0; rest &= rest - 1) {
    sources[k++] = op.ranks[std::countr_zero(rest)].send + op.what.OffsetOf(first);
  }
  LH_CHECK_OP(k, >, size_t{0});
  const uint64_t bytes = BytesOf(op, first, count);
  ++stats_->bursts;
  stats_->bytes_reduced += k * bytes;
  if (k == 1) {
    if (sources[0] != out) std::memmove(out, sources[0], bytes);
    return;
  }
  const Status status =
      Reduce(op.what.op, op.what.type, {sources.data(), k}, bytes / SizeOf(op.what.type), out);
  LH_CHECK(status.ok());
}

void BufferCompute::Accumulate(const Operation& op, SegPool::Unit& unit, const std::byte* data) {
  ++stats_->bursts;
  stats_->bytes_reduced += unit.length;
  const size_t elements = unit.length / SizeOf(op.what.type);
  LH_CHECK(offload::Accumulate(op.what.op, op.what.type, unit.data, data, elements).ok());
}

void BufferCompute::Finish(const Operation& op, uint32_t sid, uint32_t count, uint32_t participants,
                           std::byte* data) {
  if (op.what.op != ReduceOp::kAverage || op.what.opcode == Opcode::kBroadcast) return;
  const size_t elements = BytesOf(op, sid, count) / SizeOf(op.what.type);
  LH_CHECK(offload::Finish(op.what.op, op.what.type, data, elements, participants).ok());
}

namespace {

// Where that rank has these segs; null: it receives none of them.
std::byte* PlaceOf(const Operation& op, uint8_t rank, uint32_t first) {
  const Operation::RankMemory& memory = op.ranks[rank];
  if (memory.receive == nullptr || (op.dead >> rank & 1) != 0) return nullptr;
  const uint64_t offset = op.what.OffsetOf(first);
  if (offset < memory.share.offset || offset >= memory.share.offset + memory.share.length) return nullptr;
  return memory.receive + (offset - memory.share.offset);
}

}  // namespace

std::byte* BufferCompute::Destination(const Operation& op, uint32_t first, uint32_t count) const {
  for (uint64_t rest = op.joined; rest != 0; rest &= rest - 1) {
    const auto rank = static_cast<uint8_t>(std::countr_zero(rest));
    std::byte* const place = PlaceOf(op, rank, first);
    const Share& share = op.ranks[rank].share;
    const bool all = op.what.OffsetOf(first) + BytesOf(op, first, count) <= share.offset + share.length;
    if (place != nullptr && all) return place;
  }
  return nullptr;
}

void BufferCompute::Deliver(const Operation& op, uint32_t first, uint32_t count, const std::byte* data) {
  const std::byte* last = data;  // ranks that share memory are neighbours
  for (uint64_t rest = op.joined; rest != 0; rest &= rest - 1) {
    std::byte* const place = PlaceOf(op, static_cast<uint8_t>(std::countr_zero(rest)), first);
    if (place == nullptr || place == last || place == data) continue;
    std::memcpy(place, data, BytesOf(op, first, count));
    last = place;
  }
}

}  // namespace longhaul::offload
