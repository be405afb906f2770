#include "codec/chunk/bits.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "codec/chunk/quantize.h"

namespace longhaul::codec {
namespace {

constexpr uint32_t kWordBits = 32;

// Of one element, as it travels.
uint32_t Packed(DType dtype, int8_t code) {
  if (dtype == DType::kInt4) return static_cast<uint32_t>(code) & 0xf;
  return (code < 0 ? 2u : 0u) | (std::abs(code) == kInt2Large ? 1u : 0u);
}

int8_t Unpacked(DType dtype, int8_t small, uint32_t packed) {
  if (dtype == DType::kInt4) return static_cast<int8_t>(static_cast<int8_t>(packed << 4) >> 4);
  const int8_t magnitude = (packed & 1) != 0 ? kInt2Large : small;
  return (packed & 2) != 0 ? static_cast<int8_t>(-magnitude) : magnitude;
}

// Of exactly so many elements.
uint64_t MostGapBits(uint32_t count, uint32_t nonzero) {
  if (nonzero == 0) return 0;
  const uint32_t rice = RiceBits(count, nonzero);
  return uint64_t{nonzero} * (rice + 1) + ((count - nonzero) >> rice);
}

}  // namespace

void PackCodes(DType dtype, std::span<const int8_t> codes, MutableByteSpan packed) {
  const size_t bits = DTypeBits(dtype);
  LH_CHECK_OP(packed.size(), ==, CodeBytes(codes.size(), dtype));
  for (size_t byte = 0, i = 0; byte < packed.size(); ++byte) {
    uint32_t value = 0;
    for (size_t at = 0; at < 8 && i < codes.size(); at += bits) value |= Packed(dtype, codes[i++]) << at;
    packed[byte] = static_cast<uint8_t>(value);
  }
}

void UnpackCodes(DType dtype, uint16_t scale, ByteSpan packed, std::span<int8_t> codes) {
  const size_t bits = DTypeBits(dtype);
  LH_CHECK_OP(packed.size(), ==, CodeBytes(codes.size(), dtype));
  int8_t table[16];
  const uint32_t mask = (1u << bits) - 1;
  for (uint32_t code = 0; code <= mask; ++code) table[code] = Unpacked(dtype, Int2Small(scale), code);
  for (size_t byte = 0, i = 0; byte < packed.size(); ++byte) {
    for (size_t at = 0; at < 8 && i < codes.size(); at += bits) codes[i++] = table[packed[byte] >> at & mask];
  }
}

uint32_t RiceBits(uint32_t count, uint32_t nonzero) {
  if (nonzero == 0) return 0;
  return static_cast<uint32_t>(std::bit_width(count / nonzero)) - 1;
}

// Where r falls by one as elements become more, their gaps become a little shorter: the longest are either of
// all of them or of the last that have the r before. Those before these are shorter.
size_t MostGapBytes(uint32_t count, uint32_t nonzero) {
  if (nonzero == 0) return 0;
  const uint32_t before = count >> (RiceBits(count, nonzero) + 1);
  return (std::max(MostGapBits(count, nonzero), MostGapBits(count, before)) + 7) / 8;
}

void GapWriter::Put(uint32_t bits, uint32_t count) {
  bits_ |= uint64_t{bits} << held_;
  for (held_ += count; held_ >= 8; held_ -= 8, bits_ >>= 8) out_->push_back(static_cast<uint8_t>(bits_));
}

void GapWriter::Add(uint32_t position) {
  const uint32_t gap = position - next_;
  next_ = position + 1;
  uint32_t ones = gap >> rice_;
  for (; ones >= kWordBits - 1; ones -= kWordBits - 1) Put((1u << (kWordBits - 1)) - 1, kWordBits - 1);
  Put((1u << ones) - 1, ones + 1);
  Put(gap & ((1u << rice_) - 1), rice_);
}

void GapWriter::Finish() {
  if (held_ > 0) out_->push_back(static_cast<uint8_t>(bits_));
}

// The next 32 bits, zeros behind the end.
uint32_t GapReader::Peek() const {
  uint64_t word = 0;
  const size_t byte = std::min(at_ / 8, bytes_.size());
  const size_t n = std::min(sizeof(word), bytes_.size() - byte);
  if (n > 0) std::memcpy(&word, bytes_.data() + byte, n);
  return static_cast<uint32_t>(word >> (at_ % 8));
}

uint32_t GapReader::Next() {
  uint64_t gap = 0;
  uint32_t ones = kWordBits;
  while (ones == kWordBits && at_ < 8 * bytes_.size()) {
    ones = static_cast<uint32_t>(std::countr_one(Peek()));
    gap += uint64_t{ones} << rice_;
    at_ += ones;
  }
  ++at_;  // the zero
  gap += Peek() & ((1u << rice_) - 1);
  at_ += rice_;
  const uint64_t position = next_ + gap;
  if (at_ > 8 * bytes_.size() || position >= count_) {
    at_ = 8 * bytes_.size();
    return count_;
  }
  next_ = position + 1;
  return static_cast<uint32_t>(position);
}

}  // namespace longhaul::codec
