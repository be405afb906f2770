#include "base/bytes.h"

#include "base/check.h"

namespace longhaul {

std::string HexOf(ByteSpan bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const uint8_t byte : bytes) text.append({kDigits[byte >> 4], kDigits[byte & 15]});
  return text;
}

uint64_t ByteReader::Unsigned(size_t width) {
  if (!ok_ || remaining() < width) {
    ok_ = false;
    return 0;
  }
  uint64_t v = 0;
  for (size_t i = 0; i < width; ++i) v = v << 8 | data_[position_ + i];
  position_ += width;
  return v;
}

uint64_t ByteReader::Varint() {
  if (!ok_ || remaining() < 1) {
    ok_ = false;
    return 0;
  }
  const size_t width = size_t{1} << (data_[position_] >> 6);
  const uint64_t raw = Unsigned(width);
  if (!ok_) return 0;
  return raw & (~uint64_t{0} >> (66 - 8 * width));  // the two length bits are not part of the value
}

ByteSpan ByteReader::Bytes(size_t n) {
  if (!ok_ || remaining() < n) {
    ok_ = false;
    return {};
  }
  const ByteSpan bytes = data_.subspan(position_, n);
  position_ += n;
  return bytes;
}

void ByteWriter::Unsigned(uint64_t v, size_t width) {
  if (!ok_ || remaining() < width) {
    ok_ = false;
    return;
  }
  for (size_t i = 0; i < width; ++i) out_[position_ + i] = static_cast<uint8_t>(v >> 8 * (width - 1 - i));
  position_ += width;
}

void ByteWriter::Varint(uint64_t v) {
  LH_CHECK_OP(v, <=, kMaxVarint);
  const size_t width = VarintSize(v);
  const uint64_t length_bits = static_cast<uint64_t>(std::countr_zero(width));
  Unsigned(v | length_bits << (8 * width - 2), width);
}

void ByteWriter::Bytes(ByteSpan bytes) {
  if (!ok_ || remaining() < bytes.size()) {
    ok_ = false;
    return;
  }
  if (!bytes.empty()) std::memcpy(out_.data() + position_, bytes.data(), bytes.size());
  position_ += bytes.size();
}

}  // namespace longhaul
