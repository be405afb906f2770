#include "proto/utf8.h"

#include <cstdint>

namespace longhaul::wire {
namespace {

// Bytes of the character at the start of `text`; 0 when it is not a valid one. RFC 3629 §4: the range of the
// second byte depends on the first, the others are 80..BF.
size_t CharacterBytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const size_t bytes = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (text.size() < bytes) return 0;
  const uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < bytes; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  }
  return bytes;
}

}  // namespace

std::string_view ValidUtf8Prefix(std::string_view text, size_t max_bytes) {
  size_t end = 0;
  while (end < text.size()) {
    const size_t bytes = CharacterBytes(text.substr(end));
    if (bytes == 0 || end + bytes > max_bytes) break;
    end += bytes;
  }
  return text.substr(0, end);
}

}  // namespace longhaul::wire
