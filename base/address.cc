#include "base/address.h"

#include <cstdio>

namespace longhaul {

Address Address::V4(uint8_t a, uint8_t b, uint8_t c, uint8_t d, uint16_t port) {
  Address address;
  address.ip = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d};
  address.port = port;
  return address;
}

bool Address::IsV4() const {
  for (size_t i = 0; i < 10; ++i) {
    if (ip[i] != 0) return false;
  }
  return ip[10] == 0xff && ip[11] == 0xff;
}

bool Address::IsLoopback() const {
  if (IsV4()) return ip[12] == 127;
  for (size_t i = 0; i < 15; ++i) {
    if (ip[i] != 0) return false;
  }
  return ip[15] == 1;
}

std::string Address::ToString() const {
  char text[64];
  if (IsV4()) {
    std::snprintf(text, sizeof text, "%u.%u.%u.%u:%u", ip[12], ip[13], ip[14], ip[15], port);
    return text;
  }
  // Without zero compression except for the loopback, which people do read.
  if (IsLoopback()) {
    std::snprintf(text, sizeof text, "[::1]:%u", port);
    return text;
  }
  std::string out = "[";
  for (size_t i = 0; i < 16; i += 2) {
    std::snprintf(text, sizeof text, "%s%x", i == 0 ? "" : ":", ip[i] << 8 | ip[i + 1]);
    out += text;
  }
  return out + "]:" + std::to_string(port);
}

}  // namespace longhaul
