// What several fuzzers make of their input, and where cores write what they send.
#pragma once

#include <array>
#include <span>
#include <string>

#include "base/bytes.h"
#include "tests/fuzz/input.h"

namespace longhaul::fuzz {

// One of the usual texts, a long one, or any bytes; of `out_of` equally likely cases the usual ones come
// first.
inline std::string AnyText(FuzzInput& in, std::span<const char* const> usual, uint32_t out_of) {
  const uint32_t which = in.Below(out_of);
  if (which < usual.size()) return usual[which];
  if (which == usual.size()) return std::string(in.U16() % 2000, 'n');
  const ByteSpan bytes = in.Bytes(in.Below(24));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Of the largest datagram; nothing of it is read later.
inline MutableByteSpan Buffer() {
  static std::array<uint8_t, 65507> buffer;
  return buffer;
}

}  // namespace longhaul::fuzz
