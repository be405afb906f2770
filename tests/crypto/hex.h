// Bytes written as hexadecimal text, spaces allowed.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace longhaul::crypto {

inline std::vector<uint8_t> Hex(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::vector<uint8_t> bytes;
  bool high = true;
  for (char c : text) {
    if (c == ' ') continue;
    const auto digit = static_cast<uint8_t>(kDigits.find(c));
    if (high) bytes.push_back(static_cast<uint8_t>(digit << 4));
    if (!high) bytes.back() = static_cast<uint8_t>(bytes.back() | digit);
    high = !high;
  }
  return bytes;
}

}  // namespace longhaul::crypto
