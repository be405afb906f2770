// Takes a fuzzer's input apart into decisions; zeros when it is used up.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace longhaul {

class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : rest_(data, size) {}

  bool empty() const { return rest_.empty(); }
  uint8_t U8() {
    if (rest_.empty()) return 0;
    const uint8_t v = rest_[0];
    rest_ = rest_.subspan(1);
    return v;
  }
  uint16_t U16() {
    const uint16_t high = U8();
    return static_cast<uint16_t>(high << 8 | U8());
  }
  uint32_t U32() {
    const uint32_t high = U16();
    return high << 16 | U16();
  }
  // 0..bound-1
  uint32_t Below(uint32_t bound) { return bound <= 256 ? U8() % bound : U16() % bound; }
  bool Flag() { return (U8() & 1) != 0; }
  ByteSpan Bytes(size_t n) {
    const ByteSpan bytes = rest_.first(std::min(n, rest_.size()));
    rest_ = rest_.subspan(bytes.size());
    return bytes;
  }

 private:
  ByteSpan rest_;
};

}  // namespace longhaul
