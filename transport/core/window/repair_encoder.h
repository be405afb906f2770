// Computes the repair symbols of a source block when the first of them is about to leave, and keeps them
// until the last has: the blocks of one interleaver take turns.
//
// Source chunks are copied, padded with zeros to the symbol length, into one scratch area; repair symbols of
// at most `blocks` blocks are held. So a window needs k + blocks * m symbols of memory whatever its size. A
// block that was pushed out has to be encoded again.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "codec/fec/erasure_coder.h"

namespace longhaul::transport {

class RepairEncoder {
 public:
  // REQUIRES: coder->Supports(k), symbol_bytes a multiple of 16, blocks > 0.
  RepairEncoder(codec::ErasureCoder* coder, uint8_t k, uint16_t symbol_bytes, uint32_t blocks);

  // Whether the symbols of `block` are held, at least `count` of them.
  bool Holds(uint32_t block, uint8_t count) const;
  // Starts a block; then AddSource for each real source in order (the rest of k are zeros), then Finish.
  void Start();
  void AddSource(ByteSpan header, ByteSpan body);
  void Finish(uint32_t block, uint8_t count);
  // Valid until the next Finish. The last one (number = count - 1) gives the block's place up. REQUIRES:
  // Holds(block, number + 1).
  ByteSpan Take(uint32_t block, uint8_t number);

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  struct Held {
    uint32_t block = kNone;
    uint8_t count = 0;
    uint64_t used = 0;
    std::vector<uint8_t> symbols;
  };

  // A place for one more block: a free one, a new one, or that of the block not asked for for longest.
  Held& Place();
  MutableByteSpan Slot(int index);

  codec::ErasureCoder* coder_;
  uint8_t k_;
  size_t symbol_bytes_;
  size_t blocks_;
  int sources_ = 0;
  uint64_t uses_ = 0;
  std::vector<uint8_t> scratch_;  // k source symbols
  std::vector<Held> held_;
};

}  // namespace longhaul::transport
