// Reed-Solomon over GF(2^8) as one would write it on a blackboard: slow, obvious, no library.
//
// Bit-identical to liberasurecode's isa_l_rs_cauchy: field polynomial 0x11d, repair row i has the coefficient
// 1 / ((k + i) xor j) for source symbol j. Every square submatrix of such a (Cauchy) matrix is regular, so
// any k of the symbols give the block back; the row depends on k and i alone, so parity is nested.
//
// It serves tests as the oracle for codec/fec/fec.h, and the transport's tests as a coder without
// dependencies. Stateless, thread-safe.
#pragma once

#include "codec/fec/erasure_coder.h"

namespace longhaul::codec {

class ReferenceCoder final : public ErasureCoder {
 public:
  bool Supports(int k) const override;
  void Encode(int k, size_t symbol_bytes, std::span<const ByteSpan> source,
              std::span<const MutableByteSpan> repair) override;
  Status Decode(int k, size_t symbol_bytes, std::span<const MutableByteSpan> source, uint32_t present,
                std::span<const RepairSymbol> repair) override;
};

}  // namespace longhaul::codec
