// A chunk: the elements of a tensor that one packet carries, in a form that describes itself.
//
//   index 32 | count 16 | nonzero 16 | dtype 4 encoding 4 | log energy 8 | scale 16                = 12 bytes
//   dense:          count values
//   bitmap-sparse:  ceil(count / 8) bytes, LSB first, padded with zeros to a multiple of 4; then nonzero
//   values
//   gap-sparse:     nonzero values; then a gap before each (codec/chunk/bits.h)
//
// Values are of the element type (codec/chunk/quantize.h), those of int4 and int2 without gaps between them,
// the last byte filled with zeros; `scale` says what integer codes stand for, zero for the other types.
// Header fields are big-endian, values little-endian as in memory. The header is part of the FEC symbol, so a
// repaired chunk carries its tensor position, element type and sparsity with it; zeros behind a chunk (symbol
// padding) are ignored. Element offset of a chunk = index * chunk_elements.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "codec/chunk/bits.h"
#include "codec/chunk/quantize.h"
#include "longhaul/status.h"
#include "longhaul/tensor.h"

namespace longhaul::codec {

inline constexpr size_t kChunkHeaderBytes = 12;
using ChunkHeaderBytes = std::array<uint8_t, kChunkHeaderBytes>;
// `count` has 16 bits on the wire.
inline constexpr uint32_t kMaxChunkElements = 65'535;

enum class ChunkEncoding : uint8_t { kDense = 0, kBitmapSparse = 1, kGapSparse = 2 };

// How a tensor of `count` elements is cut: every chunk has chunk_elements, the last may have fewer.
struct ChunkGeometry {
  uint64_t count = 0;           // elements of the tensor, >= 1
  uint32_t chunk_elements = 1;  // 1..kMaxChunkElements

  uint32_t chunks() const {
    return static_cast<uint32_t>(count / chunk_elements + (count % chunk_elements != 0 ? 1 : 0));
  }
  uint64_t First(uint32_t chunk) const { return static_cast<uint64_t>(chunk) * chunk_elements; }
  uint32_t Length(uint32_t chunk) const {
    return static_cast<uint32_t>(std::min<uint64_t>(chunk_elements, count - First(chunk)));
  }
  // The chunk's elements within a whole tensor. REQUIRES: chunk < chunks(), values.size() == count.
  template <typename T>
  std::span<T> Elements(std::span<T> values, uint32_t chunk) const {
    return values.subspan(First(chunk), Length(chunk));
  }
  bool operator==(const ChunkGeometry&) const = default;
};

// float32 elements of a chunk whose encoded form is at most `symbol_bytes` long; at least 1.
// REQUIRES: symbol_bytes >= 16.
uint32_t ChunkElementsFor(size_t symbol_bytes);

// Elements of this type that fit where one float32 fits: 1 to 16. REQUIRES: a known type.
uint32_t WireRatio(DType dtype);

// How a tensor travels. Its base geometry has the chunks of ChunkElementsFor(symbol_bytes) float32 elements,
// in which initial values travel. Chunks of gradients and results are so many times as long that their
// symbols are full; a gradient's chunk is a whole number of the result's. Where only a share of the elements
// travels it has as many as have room for that share in any places (SparseCapacity), up to kMaxChunkElements.
// So where results are of a shorter type than gradients, their chunks have as many elements and their symbols
// are shorter.
struct WireFormat {
  DType gradient = DType::kFloat32;
  DType result = DType::kFloat32;  // of 16 bits or more
  double topk_share = 0;           // > 0: only this share of the elements travels, in sparse chunks
  bool operator==(const WireFormat&) const = default;
};
// REQUIRES: known types; base chunks of at most kMaxChunkElements / 4 elements.
ChunkGeometry GradientGeometry(const ChunkGeometry& base, const WireFormat& format);
ChunkGeometry ResultGeometry(const ChunkGeometry& base, const WireFormat& format);

// A chunk that was found valid; `bitmap`, `gaps` and `values` borrow from the bytes it was parsed from.
struct ChunkView {
  uint32_t index = 0;
  uint32_t count = 0;    // elements
  uint32_t nonzero = 0;  // of these not zero: the chunk's sparsity is 1 - nonzero / count
  DType dtype = DType::kFloat32;
  ChunkEncoding encoding = ChunkEncoding::kDense;
  uint8_t log_energy = 0;  // codec/policy/priority.h, QuantizeEnergy
  uint16_t scale = 0;      // of types that have one (codec/chunk/quantize.h)
  ByteSpan bitmap;         // of kBitmapSparse
  ByteSpan gaps;           // of kGapSparse
  ByteSpan values;
};

// Encoded length of a chunk, header included: dense, bitmap-sparse, and gap-sparse at the most.
size_t DenseChunkBytes(uint32_t count, DType dtype = DType::kFloat32);
size_t SparseChunkBytes(uint32_t count, uint32_t nonzero, DType dtype = DType::kFloat32);
size_t MostGapChunkBytes(uint32_t count, uint32_t nonzero, DType dtype = DType::kFloat32);
// Values that EncodeChunk's chunk of `count` elements may have, wherever they are, without being longer than
// `symbol_bytes`; 0..count.
uint32_t SparseCapacity(size_t symbol_bytes, uint32_t count, DType dtype);

// The header of a dense float32 chunk whose values follow as they are in memory.
ChunkHeaderBytes EncodeDenseHeader(uint32_t index, uint32_t count, uint32_t nonzero, uint8_t log_energy);
// The same without sparsity and energy (results, initial values), of types without a scale.
ChunkHeaderBytes EncodeDenseHeader(uint32_t index, uint32_t count, DType dtype = DType::kFloat32);
// The header of a sparse float32 chunk, and its body (bitmap and values) appended to `body`.
// REQUIRES: values.size() <= kMaxChunkElements.
ChunkHeaderBytes EncodeSparseChunk(uint32_t index, std::span<const float> values, uint8_t log_energy,
                                   std::vector<uint8_t>* body);

struct ChunkCoding {
  DType dtype = DType::kFloat32;
  Rounding rounding = {};  // of the chunk; unused for float32
  uint8_t log_energy = 0;
};
// The header of a chunk of any type, and its body appended to `body`: in the encoding that is the shortest,
// gap-sparse taken at its most; so never longer than the dense one. What is zero after rounding does not
// travel in a sparse chunk (minus zero arrives as zero). REQUIRES: values.size() <= kMaxChunkElements.
ChunkHeaderBytes EncodeChunk(uint32_t index, std::span<const float> values, const ChunkCoding& coding,
                             std::vector<uint8_t>* body, const Kernels& kernels = BestKernels());

// Checks everything that can be checked without knowing the tensor; whether index, count and type fit it is
// the caller's to ask (ChunkGeometry). Errors: kProtocolViolation (truncated, a scale that is negative or of
// a type that has none, unknown encoding, nonzero above count, bitmap or gaps that disagree with nonzero or
// go beyond count, bits after the last code or gap), kSettingsMismatch (an unknown element type).
Result<ChunkView> ParseChunk(ByteSpan bytes);
// The same for a header and a body that are apart, as the sender has them.
Result<ChunkView> ParseChunk(const ChunkHeaderBytes& header, ByteSpan body);

// Writes all elements, zeros included. REQUIRES: out.size() == chunk.count.
void DecodeChunk(const ChunkView& chunk, std::span<float> out, const Kernels& kernels = BestKernels());
// sum += weight * value for every element; `first`: sum = weight * value, whatever was there.
// Gives what DecodeChunk and a loop would, to the bit. REQUIRES: sum.size() == chunk.count.
void DecodeAdd(const ChunkView& chunk, float weight, bool first, std::span<float> sum,
               const Kernels& kernels = BestKernels());

// Elements that are not zero.
uint32_t CountNonzero(std::span<const float> values);

}  // namespace longhaul::codec
