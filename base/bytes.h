// Cursors over byte spans that fail instead of overrunning. All integers are big-endian (network order).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace longhaul {

using ByteSpan = std::span<const uint8_t>;
using MutableByteSpan = std::span<uint8_t>;

// Two hexadecimal digits a byte.
std::string HexOf(ByteSpan bytes);

// Reads from a span it does not own. After the first failed read ok() is false, every further read fails
// and returns zero or an empty span; so a decoder may check once at its end.
class ByteReader {
 public:
  explicit ByteReader(ByteSpan data) : data_(data) {}

  bool ok() const { return ok_; }
  size_t remaining() const { return data_.size() - position_; }
  size_t position() const { return position_; }
  bool AtEnd() const { return ok_ && remaining() == 0; }

  uint8_t U8() { return static_cast<uint8_t>(Unsigned(1)); }
  uint16_t U16() { return static_cast<uint16_t>(Unsigned(2)); }
  uint32_t U32() { return static_cast<uint32_t>(Unsigned(4)); }
  uint64_t U48() { return Unsigned(6); }
  uint64_t U64() { return Unsigned(8); }
  float F32() { return std::bit_cast<float>(U32()); }
  // QUIC variable-length integer (RFC 9000 §16), 0..2^62-1.
  uint64_t Varint();
  // The next `n` bytes, without copying.
  ByteSpan Bytes(size_t n);
  ByteSpan Rest() { return Bytes(ok_ ? remaining() : 0); }
  void Fail() { ok_ = false; }

 private:
  uint64_t Unsigned(size_t width);

  ByteSpan data_;
  size_t position_ = 0;
  bool ok_ = true;
};

// Writes into a span it does not own. A write that does not fit writes nothing and makes ok() false.
class ByteWriter {
 public:
  explicit ByteWriter(MutableByteSpan out) : out_(out) {}

  bool ok() const { return ok_; }
  size_t size() const { return position_; }
  size_t remaining() const { return out_.size() - position_; }
  MutableByteSpan written() const { return out_.first(position_); }

  void U8(uint8_t v) { Unsigned(v, 1); }
  void U16(uint16_t v) { Unsigned(v, 2); }
  void U32(uint32_t v) { Unsigned(v, 4); }
  void U48(uint64_t v) { Unsigned(v, 6); }
  void U64(uint64_t v) { Unsigned(v, 8); }
  void F32(float v) { U32(std::bit_cast<uint32_t>(v)); }
  void Varint(uint64_t v);
  void Bytes(ByteSpan bytes);

 private:
  void Unsigned(uint64_t v, size_t width);

  MutableByteSpan out_;
  size_t position_ = 0;
  bool ok_ = true;
};

// Bytes that Varint(v) takes: 1, 2, 4 or 8.
constexpr size_t VarintSize(uint64_t v) {
  return v < (1u << 6) ? 1 : v < (1u << 14) ? 2 : v < (1u << 30) ? 4 : 8;
}
inline constexpr uint64_t kMaxVarint = (uint64_t{1} << 62) - 1;

}  // namespace longhaul
