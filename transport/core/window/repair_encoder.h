// Computes the repair symbols of one source block at a time, when the first of them is about to leave.
//
// Source chunks are copied, padded with zeros to the symbol length, into one scratch area that lives as long
// as the encoder; so a window needs k + m symbols of memory whatever its size.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "codec/erasure_coder.h"

namespace longhaul::transport {

class RepairEncoder {
 public:
  // REQUIRES: coder->Supports(k), symbol_bytes a multiple of 16.
  RepairEncoder(codec::ErasureCoder* coder, uint8_t k, uint16_t symbol_bytes);

  // Whether `block` was the last one encoded, with at least `count` symbols.
  bool Holds(uint32_t block, uint8_t count) const { return block_ == block && count_ >= count; }
  // Starts a block; then AddSource for each real source in order (the rest of k are zeros), then Finish.
  void Start();
  void AddSource(ByteSpan header, ByteSpan body);
  void Finish(uint32_t block, uint8_t count);
  // Valid until the next Start. REQUIRES: number < count of the last Finish.
  ByteSpan symbol(uint8_t number) const;

 private:
  MutableByteSpan Slot(int index);

  codec::ErasureCoder* coder_;
  uint8_t k_;
  size_t symbol_bytes_;
  uint32_t block_ = ~uint32_t{0};
  uint8_t count_ = 0;
  int sources_ = 0;
  std::vector<uint8_t> bytes_;  // k source symbols, then the repair symbols
};

}  // namespace longhaul::transport
