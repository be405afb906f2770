#include "tests/sim/reference_coder.h"

#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "codec/fec/fec.h"

namespace longhaul::codec {
namespace {

// Russian peasant multiplication modulo x^8 + x^4 + x^3 + x^2 + 1.
constexpr uint8_t MultiplySlowly(uint8_t a, uint8_t b) {
  unsigned product = 0;
  unsigned shifted = a;
  for (unsigned bits = b; bits != 0; bits >>= 1) {
    if (bits & 1) product ^= shifted;
    shifted <<= 1;
    if (shifted & 0x100) shifted ^= 0x11d;
  }
  return static_cast<uint8_t>(product);
}

using Table = std::array<std::array<uint8_t, 256>, 256>;

const Table& Products() {
  static const Table table = [] {
    Table t{};
    for (unsigned a = 0; a < 256; ++a) {
      for (unsigned b = 0; b < 256; ++b) {
        t[a][b] = MultiplySlowly(static_cast<uint8_t>(a), static_cast<uint8_t>(b));
      }
    }
    return t;
  }();
  return table;
}

uint8_t Inverse(uint8_t a) {
  LH_CHECK(a != 0);
  for (unsigned b = 1; b < 256; ++b) {
    if (Products()[a][b] == 1) return static_cast<uint8_t>(b);
  }
  LH_CHECK(false);
  return 0;
}

uint8_t Coefficient(int k, int repair_number, int source_number) {
  return Inverse(static_cast<uint8_t>((k + repair_number) ^ source_number));
}

// to += factor * from, byte by byte in the field.
void AddScaled(std::span<uint8_t> to, uint8_t factor, ByteSpan from) {
  const std::array<uint8_t, 256>& row = Products()[factor];
  for (size_t i = 0; i < to.size(); ++i) to[i] = static_cast<uint8_t>(to[i] ^ row[from[i]]);
}

void Scale(std::span<uint8_t> bytes, uint8_t factor) {
  const std::array<uint8_t, 256>& row = Products()[factor];
  for (uint8_t& b : bytes) b = row[b];
}

// One linear equation: coefficients of the missing symbols, and the value of their sum.
struct Equation {
  std::vector<uint8_t> coefficients;
  std::vector<uint8_t> value;
};

// Gauss-Jordan: afterwards equation i says "missing symbol i == value".
void Solve(std::vector<Equation>& equations) {
  const size_t n = equations.size();
  for (size_t column = 0; column < n; ++column) {
    size_t pivot = column;
    while (pivot < n && equations[pivot].coefficients[column] == 0) ++pivot;
    LH_CHECK_OP(pivot, <, n);  // a Cauchy submatrix is regular
    std::swap(equations[pivot], equations[column]);
    Equation& row = equations[column];
    const uint8_t inverse = Inverse(row.coefficients[column]);
    Scale(row.coefficients, inverse);
    Scale(row.value, inverse);
    for (size_t other = 0; other < n; ++other) {
      const uint8_t factor = equations[other].coefficients[column];
      if (other == column || factor == 0) continue;
      AddScaled(equations[other].coefficients, factor, row.coefficients);
      AddScaled(equations[other].value, factor, row.value);
    }
  }
}

}  // namespace

bool ReferenceCoder::Supports(int k) const { return IsBlockSize(k); }

void ReferenceCoder::Encode(int k, size_t symbol_bytes, std::span<const ByteSpan> source,
                            std::span<const MutableByteSpan> repair) {
  CheckEncodeArguments(k, symbol_bytes, source, repair);
  for (size_t i = 0; i < repair.size(); ++i) {
    std::memset(repair[i].data(), 0, symbol_bytes);
    for (int j = 0; j < k; ++j) AddScaled(repair[i], Coefficient(k, static_cast<int>(i), j), source[j]);
  }
}

Status ReferenceCoder::Decode(int k, size_t symbol_bytes, std::span<const MutableByteSpan> source,
                              uint32_t present, std::span<const RepairSymbol> repair) {
  if (Status status = CheckDecodeArguments(k, symbol_bytes, source, present, repair); !status.ok())
    return status;
  std::vector<int> missing;
  for (int j = 0; j < k; ++j) {
    if ((present >> j & 1) == 0) missing.push_back(j);
  }
  // As many repair equations as unknowns, with the known symbols moved to the other side.
  std::vector<Equation> equations(missing.size());
  for (size_t i = 0; i < equations.size(); ++i) {
    equations[i].value.assign(repair[i].bytes.begin(), repair[i].bytes.end());
    for (int j = 0; j < k; ++j) {
      const uint8_t coefficient = Coefficient(k, repair[i].number, j);
      if ((present >> j & 1) != 0) {
        AddScaled(equations[i].value, coefficient, source[j]);
      } else {
        equations[i].coefficients.push_back(coefficient);
      }
    }
  }
  Solve(equations);
  for (size_t i = 0; i < missing.size(); ++i) {
    std::memcpy(source[missing[i]].data(), equations[i].value.data(), symbol_bytes);
  }
  return Status::Ok();
}

}  // namespace longhaul::codec
