#include "transport/core/window/block_map.h"

#include <algorithm>

#include "base/check.h"

namespace longhaul::transport {

BlockMap::BlockMap(uint32_t high_count, uint8_t k, uint8_t depth)
    : high_count_(high_count), k_(k), depth_(std::max<uint32_t>(1, depth)) {
  if (k_ == 0) return;
  const uint32_t superblock = k_ * depth_;
  full_superblocks_ = high_count_ / superblock;
  rest_blocks_ = (high_count_ % superblock + k_ - 1) / k_;
  block_count_ = full_superblocks_ * depth_ + rest_blocks_;
}

BlockMap::Position BlockMap::Locate(uint32_t sequence) const {
  LH_CHECK_OP(sequence, <, high_count_);
  LH_CHECK(k_ > 0);
  const uint32_t superblock = k_ * depth_;
  const uint32_t number = sequence / superblock;
  const uint32_t offset = sequence % superblock;
  const uint32_t width = number < full_superblocks_ ? depth_ : rest_blocks_;
  return {number * depth_ + offset % width, static_cast<uint8_t>(offset / width)};
}

uint32_t BlockMap::Sequence(uint32_t block, uint8_t symbol) const {
  LH_CHECK_OP(block, <, block_count_);
  const uint32_t number = block / depth_;
  const uint32_t width = number < full_superblocks_ ? depth_ : rest_blocks_;
  const uint32_t sequence = number * k_ * depth_ + symbol * width + block % depth_;
  LH_CHECK_OP(sequence, <, high_count_);
  return sequence;
}

uint8_t BlockMap::SourceSymbols(uint32_t block) const {
  LH_CHECK_OP(block, <, block_count_);
  const uint32_t number = block / depth_;
  if (number < full_superblocks_) return k_;
  // The rest's rows are rest_blocks_ wide; the last one may be short.
  const uint32_t rest = high_count_ - full_superblocks_ * k_ * depth_;
  const bool longer = block % depth_ < rest % rest_blocks_;
  return static_cast<uint8_t>(rest / rest_blocks_ + (longer ? 1 : 0));
}

uint32_t BlockMap::Spacing(uint32_t block) const {
  LH_CHECK_OP(block, <, block_count_);
  return block / depth_ < full_superblocks_ ? depth_ : rest_blocks_;
}

uint32_t BlockMap::LastSequence(uint32_t block) const {
  return Sequence(block, static_cast<uint8_t>(SourceSymbols(block) - 1));
}

}  // namespace longhaul::transport
