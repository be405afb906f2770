#include "base/crc32c.h"

#include <array>
#include <cstring>

namespace longhaul {
namespace {

constexpr uint32_t kReversedPolynomial = 0x82f63b78;

// table[k][b]: the remainder of byte b followed by k zero bytes, so that four bytes take four look-ups that
// do not wait for each other.
using Tables = std::array<std::array<uint32_t, 256>, 4>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kReversedPolynomial : 0);
    tables[0][b] = crc;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (size_t b = 0; b < 256; ++b) {
      const uint32_t previous = tables[k - 1][b];
      tables[k][b] = (previous >> 8) ^ tables[0][previous & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("sse4.2"))) uint32_t Crc32cSse42(ByteSpan data, uint32_t crc) {
  uint64_t state = ~crc;
  const uint8_t* p = data.data();
  size_t left = data.size();
  for (; left >= 8; left -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, sizeof(word));
    state = __builtin_ia32_crc32di(state, word);
  }
  uint32_t narrow = static_cast<uint32_t>(state);
  for (; left > 0; --left, ++p) narrow = __builtin_ia32_crc32qi(narrow, *p);
  return ~narrow;
}

bool HasSse42() {
  static const bool has = __builtin_cpu_supports("sse4.2") != 0;
  return has;
}
#endif

}  // namespace

uint32_t Crc32cPortable(ByteSpan data, uint32_t crc) {
  uint32_t state = ~crc;
  const uint8_t* p = data.data();
  size_t left = data.size();
  for (; left >= 4; left -= 4, p += 4) {
    state ^= uint32_t{p[0]} | uint32_t{p[1]} << 8 | uint32_t{p[2]} << 16 | uint32_t{p[3]} << 24;
    state = kTables[3][state & 0xff] ^ kTables[2][(state >> 8) & 0xff] ^ kTables[1][(state >> 16) & 0xff] ^
            kTables[0][state >> 24];
  }
  for (; left > 0; --left, ++p) state = (state >> 8) ^ kTables[0][(state ^ *p) & 0xff];
  return ~state;
}

uint32_t Crc32c(ByteSpan data, uint32_t crc) {
#if defined(__x86_64__) && defined(__GNUC__)
  if (HasSse42()) return Crc32cSse42(data, crc);
#endif
  return Crc32cPortable(data, crc);
}

}  // namespace longhaul
