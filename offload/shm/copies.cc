#include "offload/shm/copies.h"

#include <algorithm>
#include <bit>

namespace longhaul::offload {
namespace {

uint64_t Below(uint64_t mask, uint8_t bit) { return bit >= 64 ? mask : mask & ((uint64_t{1} << bit) - 1); }

// Of the message: what the request's segs hold.
ByteRange SegsOf(const WorkRequest& r, uint32_t seg_bytes) {
  const uint64_t begin = std::min(uint64_t{r.first_seg} * seg_bytes, r.length);
  const uint64_t end = (uint64_t{r.first_seg} + r.seg_count) * seg_bytes;
  return {begin, (r.seg_count == 0 ? r.length : std::min(end, r.length)) - begin};
}

Result<ByteRange> OfShare(const WorkRequest& r, ByteRange segs, uint32_t seg_bytes, uint8_t node,
                          uint8_t rank) {
  if (r.nodes == 0 || r.ranks == 0) {
    return Status(StatusCode::kInvalidArgument,
                  "offload: a reduce-scatter into memory of Register names its nodes and ranks; "
                  "memory of Allocate needs none");
  }
  const auto ranks = static_cast<uint32_t>(std::popcount(r.ranks));
  const auto index =
      static_cast<uint32_t>(ranks * static_cast<uint32_t>(std::popcount(Below(r.nodes, node))) +
                            static_cast<uint32_t>(std::popcount(Below(r.ranks, rank))));
  const Share share =
      ShareOf(r.length, seg_bytes, index, ranks * static_cast<uint32_t>(std::popcount(r.nodes)));
  const uint64_t begin = std::max(segs.offset, share.offset);
  const uint64_t end = std::min(segs.offset + segs.bytes, share.offset + share.length);
  if (begin >= end) return ByteRange{};
  return ByteRange{r.receive.offset + begin - share.offset, end - begin};
}

}  // namespace

Result<CopyRanges> RangesOf(const WorkRequest& r, uint32_t seg_bytes, uint8_t node, uint8_t rank) {
  if (r.opcode == Opcode::kSend) return CopyRanges{{r.send.offset, r.length}, {}};
  if (r.opcode == Opcode::kReceive) return CopyRanges{{}, {r.receive.offset, r.length}};
  if (r.opcode > Opcode::kBroadcast) return CopyRanges{};
  const ByteRange segs = SegsOf(r, seg_bytes);
  const bool root = r.root_node == node && r.root_rank == rank;
  CopyRanges ranges;
  if (r.opcode != Opcode::kBroadcast || root) ranges.send = {r.send.offset + segs.offset, segs.bytes};
  if (r.opcode == Opcode::kReduceScatter) {
    const auto share = OfShare(r, segs, seg_bytes, node, rank);
    if (!share.ok()) return share.status();
    ranges.receive = *share;
  } else if (r.opcode != Opcode::kReduce || root) {
    ranges.receive = {r.receive.offset + segs.offset, segs.bytes};
  }
  return ranges;
}

}  // namespace longhaul::offload
