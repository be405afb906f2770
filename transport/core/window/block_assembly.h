// The receiver's memory of incomplete source blocks: symbols are kept until any `sources` of a block are
// here, then the missing ones are rebuilt.
//
// A block's buffer has one slot per real source, since never more symbols than that are kept: arrivals take
// slots in any order, and missing sources are rebuilt beside it. Buffers are taken at a block's first symbol
// and recycled when it is complete.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "codec/fec/erasure_coder.h"
#include "longhaul/units.h"
#include "transport/core/window/block_map.h"

namespace longhaul::transport {

class BlockAssembly {
 public:
  // Spare buffers kept for the next blocks: as many as an interleaver of usual depth fills at once.
  static constexpr size_t kMaxSpareBuffers = 8;

  // REQUIRES: coder->Supports(map.k()), symbol_bytes a multiple of 16.
  BlockAssembly(const BlockMap& map, uint16_t symbol_bytes, codec::ErasureCoder* coder);

  bool IsComplete(uint32_t block) const { return blocks_[block].complete; }
  bool HasRepair(uint32_t block, uint8_t number) const;

  // Keeps a symbol; a source may be shorter than the symbol length. True when the block now has enough.
  // REQUIRES: the block is not complete, the symbol is not held.
  bool AddSource(uint32_t block, uint8_t symbol, ByteSpan chunk);
  bool AddRepair(uint32_t block, uint8_t number, ByteSpan bytes);
  // Rebuilds what is missing and completes the block: its buffer is recycled. Returns the bits of the sources
  // that were missing. REQUIRES: the last Add of the block returned true.
  uint32_t Complete(uint32_t block);
  // A source rebuilt by the last Complete; its bytes live until EndLoans.
  ByteSpan rebuilt(uint8_t symbol);
  // The bytes of rebuilt sources are not looked at any more.
  void EndLoans();

  // Bytes held for incomplete blocks.
  ByteCount buffered() const { return buffered_; }

 private:
  struct Buffer {
    std::vector<uint8_t> bytes;
    // What each slot in use holds: a source's number, or k + a repair symbol's number.
    std::array<uint8_t, codec::kMaxBlockSymbols> contents{};
    uint8_t used = 0;
    uint32_t held = 0;  // bit per source, then per repair symbol from bit k
  };
  struct Block {
    std::unique_ptr<Buffer> buffer;
    bool complete = false;
  };

  bool Add(uint32_t block, uint8_t content, ByteSpan bytes);
  Buffer& BufferOf(uint32_t block);
  void Recycle(uint32_t block);
  void Decode(const Buffer& buffer, uint8_t sources, uint32_t missing);
  MutableByteSpan Scratch(int index);

  BlockMap map_;
  size_t symbol_bytes_;
  codec::ErasureCoder* coder_;
  std::vector<Block> blocks_;
  std::vector<std::unique_ptr<Buffer>> spare_;
  ByteCount buffered_;
  std::vector<uint8_t> scratch_;  // a block's k source symbols during and after a rebuild
  bool lent_ = false;             // scratch_ is being looked at
  std::vector<std::vector<uint8_t>> lent_before_;
};

}  // namespace longhaul::transport
