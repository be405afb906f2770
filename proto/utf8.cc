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

// `character`: one of UTF-8, whole.
bool IsControl(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(character[i]); };
  if (character.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7f;
  if (character.size() == 2) return byte(0) == 0xc2 && byte(1) < 0xa0;
  if (character.size() != 3 || byte(0) != 0xe2) return false;
  return (byte(1) == 0x80 && byte(2) >= 0xa8 && byte(2) <= 0xae) ||
         (byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9);
}

// Bytes of the printable character at the start of `text`; 0 when there is none.
size_t PrintableBytes(std::string_view text) {
  const size_t bytes = CharacterBytes(text);
  return bytes == 0 || IsControl(text.substr(0, bytes)) ? 0 : bytes;
}

std::string Escaped(char c) {
  constexpr char kDigits[] = "0123456789abcdef";
  const auto byte = static_cast<uint8_t>(c);
  return {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
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

std::string Printable(std::string_view text, size_t max_bytes) {
  std::string out;
  while (!text.empty()) {
    const size_t bytes = PrintableBytes(text);
    const std::string next = bytes > 0 ? std::string(text.substr(0, bytes)) : Escaped(text[0]);
    if (out.size() + next.size() > max_bytes) break;
    out += next;
    text.remove_prefix(bytes > 0 ? bytes : 1);
  }
  return out;
}

bool IsPrintable(std::string_view text) {
  while (!text.empty()) {
    const size_t bytes = PrintableBytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

}  // namespace longhaul::wire
