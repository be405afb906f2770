// Random source blocks and erasures for the tests of erasure coders.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "base/random.h"
#include "codec/fec/erasure_coder.h"

namespace longhaul::codec {

using Symbols = std::vector<std::vector<uint8_t>>;

inline std::vector<uint8_t> RandomBytes(Random& random, size_t n) {
  std::vector<uint8_t> bytes(n);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random.Next());
  return bytes;
}

inline Symbols RandomSymbols(Random& random, int count, size_t symbol_bytes) {
  Symbols symbols;
  for (int i = 0; i < count; ++i) symbols.push_back(RandomBytes(random, symbol_bytes));
  return symbols;
}

inline std::vector<ByteSpan> Views(const Symbols& symbols) { return {symbols.begin(), symbols.end()}; }
inline std::vector<MutableByteSpan> MutableViews(Symbols& symbols) {
  return {symbols.begin(), symbols.end()};
}

inline Symbols EncodeBlock(ErasureCoder& coder, const Symbols& source, int m) {
  const size_t symbol_bytes = source[0].size();
  Symbols repair(static_cast<size_t>(m), std::vector<uint8_t>(symbol_bytes));
  coder.Encode(static_cast<int>(source.size()), symbol_bytes, Views(source), MutableViews(repair));
  return repair;
}

// What is left of a block after losses: lost source symbols are overwritten with 0xee.
struct Survivors {
  Symbols source;
  uint32_t present = 0;
  std::vector<RepairSymbol> repair;  // borrows from the block's repair symbols
};

// Loses `losses` of the k + m symbols, chosen by `random`.
inline Survivors Lose(Random& random, const Symbols& source, const Symbols& repair, size_t losses) {
  const size_t k = source.size();
  std::vector<size_t> order(k + repair.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random.Below(i + 1)]);
  std::vector<bool> lost(order.size(), false);
  for (size_t i = 0; i < losses; ++i) lost[order[i]] = true;

  Survivors left{source, 0, {}};
  for (size_t j = 0; j < k; ++j) {
    if (lost[j]) {
      std::ranges::fill(left.source[j], uint8_t{0xee});
    } else {
      left.present |= uint32_t{1} << j;
    }
  }
  for (size_t i = 0; i < repair.size(); ++i) {
    if (!lost[k + i]) left.repair.push_back({static_cast<int>(i), repair[i]});
  }
  return left;
}

inline Status DecodeBlock(ErasureCoder& coder, Survivors& left) {
  return coder.Decode(static_cast<int>(left.source.size()), left.source[0].size(), MutableViews(left.source),
                      left.present, left.repair);
}

}  // namespace longhaul::codec
