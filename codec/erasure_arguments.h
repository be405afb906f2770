// What every erasure coder checks before it touches a byte, so that all of them refuse alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "codec/erasure_coder.h"
#include "longhaul/status.h"

namespace longhaul::codec {

// Symbols are a multiple of this many bytes: the strictest unit among liberasurecode's backends.
inline constexpr size_t kSymbolAlignment = 16;

bool IsBlockSize(int k);

// Stops the process when Encode's REQUIRES is broken: the arguments are ours, never the network's.
void CheckEncodeArguments(int k, size_t symbol_bytes, std::span<const ByteSpan> source,
                          std::span<const MutableByteSpan> repair);

// The errors that ErasureCoder::Decode promises. Ok means: k symbols or more, all in range, distinct and of
// the right length (or nothing is missing).
Status CheckDecodeArguments(int k, size_t symbol_bytes, std::span<const MutableByteSpan> source,
                            uint32_t present, std::span<const RepairSymbol> repair);

}  // namespace longhaul::codec
