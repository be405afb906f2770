// The abstract erasure coder: what the transport needs to know about FEC, and nothing else.
//
// Names as in RFC 5052/6363: a source block has k source symbols of equal length; up to m repair symbols are
// computed from them; any k of the k + m symbols give the block back (the code is MDS). Parity is nested: for
// a fixed k, repair symbol number i is the same whatever m is, so m can be chosen late and grow.
//
// Thread-safe: one coder serves every thread. Implemented by codec/fec/fec.h (liberasurecode) and, as an
// obvious reference for tests, by tests/sim/reference_coder.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "longhaul/status.h"

namespace longhaul::codec {

// Bound of the library: k + m <= 32.
inline constexpr int kMaxBlockSymbols = 32;
// Block sizes that exist, largest first.
inline constexpr int kBlockSizes[] = {24, 20, 16, 12, 8};

// The largest block size that is at most `fec_k` and that a window of `high_count` chunks can fill; 0 when
// none is. The smallest one is taken for fewer chunks than it has.
constexpr uint8_t BlockSizeFor(uint8_t fec_k, uint32_t high_count) {
  for (const int k : kBlockSizes) {
    if (k <= fec_k && (k == kBlockSizes[4] || static_cast<uint32_t>(k) <= high_count)) {
      return static_cast<uint8_t>(k);
    }
  }
  return 0;
}

// A repair symbol that arrived.
struct RepairSymbol {
  int number = 0;  // 0..MaxRepair(k)-1
  ByteSpan bytes;
};

class ErasureCoder {
 public:
  virtual ~ErasureCoder() = default;

  // Whether blocks of k source symbols can be coded: k is one of kBlockSizes.
  virtual bool Supports(int k) const = 0;
  // Repair symbols that exist for a block of k: 32 - k.
  static constexpr int MaxRepair(int k) { return kMaxBlockSymbols - k; }

  // Computes repair symbols 0..repair.size()-1.
  //   source: k spans of `symbol_bytes` each   repair: spans of `symbol_bytes`, written
  // REQUIRES: Supports(k), source.size() == k, 1 <= repair.size() <= MaxRepair(k), symbol_bytes a multiple
  // of 16.
  virtual void Encode(int k, size_t symbol_bytes, std::span<const ByteSpan> source,
                      std::span<const MutableByteSpan> repair) = 0;

  // Rebuilds the missing source symbols in place.
  //   source: k spans of `symbol_bytes`; those whose bit is set in `present` hold data, the others are written
  //   repair: distinct repair symbols of `symbol_bytes` each
  // Errors: kInvalidArgument (unsupported k, a number out of range or twice, a wrong length),
  //         kDataLoss (fewer than k symbols in all). Nothing is written on error.
  virtual Status Decode(int k, size_t symbol_bytes, std::span<const MutableByteSpan> source, uint32_t present,
                        std::span<const RepairSymbol> repair) = 0;
};

}  // namespace longhaul::codec
