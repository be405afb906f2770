// What in a chunk is no whole number of bytes: codes of int4 and int2, and positions as gaps. All of it
// begins with the least significant bit of the first byte; the last byte is filled with zeros.
//
// Gaps. A gap is how many elements that do not travel lie before one that does: Golomb-Rice codes with the
// parameter r = floor(log2(count / nonzero)), which both ends compute. A gap g is g >> r ones, a zero, and
// the r low bits of g. Where a share p travels, independently of each other, a gap takes
//
//   p                 entropy   Rice   8 bits, 255 for more   bitmap
//   1/64                7.43    7.57                   8.15       64
//   1/10                4.69    4.76                   8.00       10
//   1/2                 2.00    2.33                   8.00        2
//
// bits, and at the most r + 1 + (1 / p - 1) / 2^r, which is under 8 for p = 1/64: the unary parts of all gaps
// together are no longer than count / 2^r. So how many elements fit in a symbol is known before they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "longhaul/tensor.h"

namespace longhaul::codec {

// Bytes that so many codes of a type take.
constexpr size_t CodeBytes(size_t codes, DType dtype) { return (codes * DTypeBits(dtype) + 7) / 8; }

// Codes of int4 and int2, which codec/chunk/quantize.h has as multiples of a step, a byte each.
// REQUIRES: packed.size() == CodeBytes(codes.size(), dtype); all of `packed` is written.
void PackCodes(DType dtype, std::span<const int8_t> codes, MutableByteSpan packed);
// The other way round, of any bytes; `scale` is the chunk's. REQUIRES: the same.
void UnpackCodes(DType dtype, uint16_t scale, ByteSpan packed, std::span<int8_t> codes);

// The parameter r. REQUIRES: nonzero <= count.
uint32_t RiceBits(uint32_t count, uint32_t nonzero);
// The most bytes that the gaps of so many elements, or of fewer, can take. REQUIRES: nonzero <= count.
size_t MostGapBytes(uint32_t count, uint32_t nonzero);

// Appends the gaps of elements that are asked for in order.
class GapWriter {
 public:
  GapWriter(uint32_t count, uint32_t nonzero, std::vector<uint8_t>* out)
      : rice_(RiceBits(count, nonzero)), out_(out) {}
  void Add(uint32_t position);
  // Writes the last byte. To be called once.
  void Finish();

 private:
  void Put(uint32_t bits, uint32_t count);

  uint32_t rice_;
  std::vector<uint8_t>* out_;
  uint32_t next_ = 0;  // position of a gap of 0
  uint64_t bits_ = 0;
  uint32_t held_ = 0;  // bits of bits_, fewer than 8
};

// Reads positions from any bytes.
class GapReader {
 public:
  GapReader(uint32_t count, uint32_t nonzero, ByteSpan bytes)
      : rice_(RiceBits(count, nonzero)), count_(count), bytes_(bytes) {}
  // The next element that travels; `count`: the bytes end before it, or it is beyond the last.
  uint32_t Next();
  // Bytes of which a bit was read.
  size_t used() const { return (at_ + 7) / 8; }
  // What is left of the last one is zeros.
  bool padded() const { return at_ % 8 == 0 || bytes_[at_ / 8] >> (at_ % 8) == 0; }

 private:
  uint32_t Peek() const;

  uint32_t rice_;
  uint32_t count_;
  ByteSpan bytes_;
  size_t at_ = 0;      // bits
  uint64_t next_ = 0;  // position of a gap of 0
};

}  // namespace longhaul::codec
