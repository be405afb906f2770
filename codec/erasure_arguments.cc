#include "codec/erasure_arguments.h"

#include <algorithm>
#include <bit>
#include <string>

#include "base/check.h"

namespace longhaul::codec {
namespace {

Status Invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

Status CheckRepair(int k, size_t symbol_bytes, std::span<const RepairSymbol> repair) {
  uint32_t seen = 0;
  for (const RepairSymbol& symbol : repair) {
    if (symbol.number < 0 || symbol.number >= ErasureCoder::MaxRepair(k)) {
      return Invalid("repair symbol " + std::to_string(symbol.number) +
                     " does not exist for k = " + std::to_string(k));
    }
    if (symbol.bytes.size() != symbol_bytes) {
      return Invalid("repair symbol of " + std::to_string(symbol.bytes.size()) + " bytes in a block of " +
                     std::to_string(symbol_bytes));
    }
    const uint32_t bit = 1u << symbol.number;
    if (seen & bit) return Invalid("repair symbol " + std::to_string(symbol.number) + " twice");
    seen |= bit;
  }
  return Status::Ok();
}

}  // namespace

bool IsBlockSize(int k) { return std::ranges::find(kBlockSizes, k) != std::end(kBlockSizes); }

void CheckEncodeArguments(int k, size_t symbol_bytes, std::span<const ByteSpan> source,
                          std::span<const MutableByteSpan> repair) {
  LH_CHECK(IsBlockSize(k));
  LH_CHECK_OP(symbol_bytes, >, 0u);
  LH_CHECK_OP(symbol_bytes % kSymbolAlignment, ==, 0u);
  LH_CHECK_OP(source.size(), ==, static_cast<size_t>(k));
  LH_CHECK_OP(repair.size(), >=, 1u);
  LH_CHECK_OP(repair.size(), <=, static_cast<size_t>(ErasureCoder::MaxRepair(k)));
  for (const ByteSpan& symbol : source) LH_CHECK_OP(symbol.size(), ==, symbol_bytes);
  for (const MutableByteSpan& symbol : repair) LH_CHECK_OP(symbol.size(), ==, symbol_bytes);
}

Status CheckDecodeArguments(int k, size_t symbol_bytes, std::span<const MutableByteSpan> source,
                            uint32_t present, std::span<const RepairSymbol> repair) {
  if (!IsBlockSize(k)) return Invalid("blocks of " + std::to_string(k) + " source symbols do not exist");
  if (symbol_bytes == 0 || symbol_bytes % kSymbolAlignment != 0) {
    return Invalid("symbols of " + std::to_string(symbol_bytes) + " bytes: not a multiple of 16");
  }
  if (source.size() != static_cast<size_t>(k)) {
    return Invalid(std::to_string(source.size()) + " source symbols for k = " + std::to_string(k));
  }
  for (const MutableByteSpan& symbol : source) {
    if (symbol.size() != symbol_bytes) {
      return Invalid("source symbol of " + std::to_string(symbol.size()) + " bytes in a block of " +
                     std::to_string(symbol_bytes));
    }
  }
  if (present >> k != 0) return Invalid("more source symbols marked present than the block has");
  if (Status status = CheckRepair(k, symbol_bytes, repair); !status.ok()) return status;
  const size_t have = static_cast<size_t>(std::popcount(present)) + repair.size();
  if (have < static_cast<size_t>(k)) {
    return {StatusCode::kDataLoss,
            std::to_string(have) + " of the " + std::to_string(k) + " symbols needed to rebuild the block"};
  }
  return Status::Ok();
}

}  // namespace longhaul::codec
