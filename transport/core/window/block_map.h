// Which source block and source symbol a high chunk belongs to: the interleaver.
//
// High chunks are numbered in order of submission, 0..high_count-1, and sent in that order. Consecutive
// chunks go to different blocks so that a burst of losses spreads: `depth` blocks of k are filled row by row
// (a superblock). The rest that does not fill a superblock is spread evenly over ceil(rest / k) blocks.
// A block with fewer than k chunks is completed by virtual zero symbols that are never sent.
//
// Both ends compute the same map from (high_count, k, depth); nothing of it travels.
#pragma once

#include <cstdint>

namespace longhaul::transport {

class BlockMap {
 public:
  struct Position {
    uint32_t block = 0;
    uint8_t symbol = 0;  // 0..SourceSymbols(block)-1
    bool operator==(const Position&) const = default;
  };

  BlockMap() = default;
  // k = 0: no FEC, zero blocks. depth is clamped to >= 1.
  BlockMap(uint32_t high_count, uint8_t k, uint8_t depth);

  uint32_t block_count() const { return block_count_; }
  uint8_t k() const { return k_; }
  uint32_t depth() const { return depth_; }
  // REQUIRES: sequence < high_count, k > 0.
  Position Locate(uint32_t sequence) const;
  // Inverse of Locate. REQUIRES: block < block_count, symbol < SourceSymbols(block).
  uint32_t Sequence(uint32_t block, uint8_t symbol) const;
  // Real source symbols of the block: 1..k.
  uint8_t SourceSymbols(uint32_t block) const;
  // How many places apart the block's symbols are sent: depth, or less for the blocks of the rest.
  uint32_t Spacing(uint32_t block) const;
  // Sequence number of the block's last source symbol in sending order.
  uint32_t LastSequence(uint32_t block) const;

 private:
  uint32_t high_count_ = 0;
  uint8_t k_ = 0;
  uint32_t depth_ = 1;
  uint32_t block_count_ = 0;
  uint32_t full_superblocks_ = 0;
  uint32_t rest_blocks_ = 0;  // blocks of the last, partial superblock
};

}  // namespace longhaul::transport
