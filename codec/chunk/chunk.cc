#include "codec/chunk/chunk.h"

#include <bit>
#include <cstring>
#include <string>

#include "base/check.h"

namespace longhaul::codec {
namespace {

static_assert(std::endian::native == std::endian::little, "values travel as they are in memory");

size_t BitmapBytes(uint32_t count) { return ((count + 7) / 8 + 3) / 4 * 4; }

struct HeaderFields {
  uint32_t index = 0;
  uint32_t count = 0;
  uint32_t nonzero = 0;
  DType dtype = DType::kFloat32;
  ChunkEncoding encoding = ChunkEncoding::kDense;
  uint8_t log_energy = 0;
  uint16_t scale = 0;
};

ChunkHeaderBytes EncodeHeader(const HeaderFields& f) {
  LH_CHECK_OP(f.count, <=, kMaxChunkElements);
  LH_CHECK_OP(f.nonzero, <=, f.count);
  ChunkHeaderBytes bytes{};
  ByteWriter writer(bytes);
  writer.U32(f.index);
  writer.U16(static_cast<uint16_t>(f.count));
  writer.U16(static_cast<uint16_t>(f.nonzero));
  writer.U8(static_cast<uint8_t>(static_cast<unsigned>(f.dtype) << 4 | static_cast<unsigned>(f.encoding)));
  writer.U8(f.log_energy);
  writer.U16(f.scale);
  return bytes;
}

Status Malformed(const char* what) {
  return Status(StatusCode::kProtocolViolation, std::string("chunk: ") + what);
}

uint32_t SetBits(ByteSpan bitmap) {
  uint32_t bits = 0;
  for (const uint8_t byte : bitmap) bits += static_cast<uint32_t>(std::popcount(byte));
  return bits;
}

bool BitsBeyond(ByteSpan bitmap, uint32_t count) {
  for (size_t bit = count; bit < bitmap.size() * 8; ++bit) {
    if ((bitmap[bit / 8] >> (bit % 8) & 1) != 0) return true;
  }
  return false;
}

// A code that stands for zero, whatever its sign.
template <typename Code>
constexpr bool IsZero(Code code) {
  if constexpr (sizeof(Code) == 1) return code == 0;
  return static_cast<Code>(code << 1) == 0;
}

template <typename Code>
uint32_t CountNonzeroCodes(ByteSpan codes) {
  uint32_t nonzero = 0;
  for (size_t at = 0; at < codes.size(); at += sizeof(Code)) {
    Code code;
    std::memcpy(&code, codes.data() + at, sizeof(Code));
    nonzero += IsZero(code) ? 0 : 1;
  }
  return nonzero;
}

// From codes one after the other to a bitmap and the codes that are not zero. `out` has room for both, and
// its bitmap is zero.
template <typename Code>
void PackNonzero(ByteSpan codes, uint8_t* out) {
  const auto count = static_cast<uint32_t>(codes.size() / sizeof(Code));
  uint8_t* next = out + BitmapBytes(count);
  for (uint32_t i = 0; i < count; ++i) {
    Code code;
    std::memcpy(&code, codes.data() + i * sizeof(Code), sizeof(Code));
    if (IsZero(code)) continue;
    out[i / 8] |= static_cast<uint8_t>(1u << (i % 8));
    std::memcpy(next, &code, sizeof(Code));
    next += sizeof(Code);
  }
}

// Turns codes of float32, of 16 bits or of int8 into a call of `f` with a Code of their size.
template <typename F>
auto WithCode(DType dtype, F f) {
  switch (DTypeSize(dtype)) {
    case 4:
      return f(uint32_t{});
    case 2:
      return f(uint16_t{});
    default:
      return f(uint8_t{});
  }
}

// The dense codes at the end of `body`, from `start` on, become bitmap and values. Bitmap and values together
// are shorter than the codes, so the codes are moved out of the way first.
void MakeSparse(DType dtype, uint32_t count, uint32_t nonzero, size_t start, std::vector<uint8_t>* body) {
  const size_t sparse_bytes = SparseChunkBytes(count, nonzero, dtype) - kChunkHeaderBytes;
  const size_t dense_bytes = body->size() - start;
  body->resize(start + sparse_bytes + dense_bytes);
  uint8_t* out = body->data() + start;
  std::memmove(out + sparse_bytes, out, dense_bytes);
  std::memset(out, 0, BitmapBytes(count));
  const ByteSpan codes(out + sparse_bytes, dense_bytes);
  WithCode(dtype, [&](auto code) { PackNonzero<decltype(code)>(codes, out); });
  body->resize(start + sparse_bytes);
}

// Calls f(element, value) for the values of a sparse chunk, in order. A word of the bitmap at a time.
template <typename F>
void ForEachSparseValue(const ChunkView& chunk, const Kernels& kernels, F f) {
  constexpr uint32_t kWordBits = 32;
  const size_t size = DTypeSize(chunk.dtype);
  float values[kWordBits];
  size_t next = 0;
  for (uint32_t first = 0; first < chunk.count; first += kWordBits) {
    uint32_t word;  // little-endian, as the bitmap is
    std::memcpy(&word, chunk.bitmap.data() + first / 8, sizeof(word));
    const auto n = static_cast<size_t>(std::popcount(word));
    if (n == 0) continue;
    Dequantize(chunk.dtype, chunk.values.subspan(next, n * size), chunk.scale, Apply::kSet, 1,
               std::span(values).first(n), kernels);
    next += n * size;
    for (size_t i = 0; i < n; ++i, word &= word - 1) {
      f(first + static_cast<uint32_t>(std::countr_zero(word)), values[i]);
    }
  }
}

// How many float32 chunks' elements go into one of the gradient's: a sparse chunk may be four times as long
// if the share that is expected of it fits.
uint32_t TopKRatio(const ChunkGeometry& base, const WireFormat& format) {
  const size_t symbol_bytes = DenseChunkBytes(base.chunk_elements);
  for (const uint32_t ratio : {4u, 2u}) {
    const uint32_t count = base.chunk_elements * ratio;
    const double expected = format.topk_share * static_cast<double>(count);
    if (expected <= static_cast<double>(SparseCapacity(symbol_bytes, count, format.gradient))) return ratio;
  }
  return 1;
}

ChunkGeometry Longer(const ChunkGeometry& base, uint32_t ratio) {
  LH_CHECK_OP(base.chunk_elements, <=, kMaxChunkElements / ratio);
  return {base.count, base.chunk_elements * ratio};
}

}  // namespace

uint32_t ChunkElementsFor(size_t symbol_bytes) {
  LH_CHECK_OP(symbol_bytes, >=, kChunkHeaderBytes + sizeof(float));
  return static_cast<uint32_t>(
      std::min<size_t>((symbol_bytes - kChunkHeaderBytes) / sizeof(float), kMaxChunkElements));
}

uint32_t WireRatio(DType dtype) {
  LH_CHECK(DTypeSize(dtype) != 0);
  return static_cast<uint32_t>(sizeof(float) / DTypeSize(dtype));
}

ChunkGeometry GradientGeometry(const ChunkGeometry& base, const WireFormat& format) {
  return Longer(base, format.topk_share > 0 ? TopKRatio(base, format) : WireRatio(format.gradient));
}

ChunkGeometry ResultGeometry(const ChunkGeometry& base, const WireFormat& format) {
  const uint32_t most = GradientGeometry(base, format).chunk_elements / base.chunk_elements;
  return Longer(base, std::min(WireRatio(format.result), most));
}

size_t DenseChunkBytes(uint32_t count, DType dtype) {
  return kChunkHeaderBytes + size_t{count} * DTypeSize(dtype);
}

size_t SparseChunkBytes(uint32_t count, uint32_t nonzero, DType dtype) {
  return kChunkHeaderBytes + BitmapBytes(count) + size_t{nonzero} * DTypeSize(dtype);
}

uint32_t SparseCapacity(size_t symbol_bytes, uint32_t count, DType dtype) {
  const size_t empty = SparseChunkBytes(count, 0, dtype);
  if (symbol_bytes < empty) return 0;
  return static_cast<uint32_t>(std::min<size_t>((symbol_bytes - empty) / DTypeSize(dtype), count));
}

ChunkHeaderBytes EncodeDenseHeader(uint32_t index, uint32_t count, uint32_t nonzero, uint8_t log_energy) {
  return EncodeHeader({.index = index, .count = count, .nonzero = nonzero, .log_energy = log_energy});
}

ChunkHeaderBytes EncodeDenseHeader(uint32_t index, uint32_t count, DType dtype) {
  return EncodeHeader({.index = index, .count = count, .nonzero = count, .dtype = dtype});
}

ChunkHeaderBytes EncodeSparseChunk(uint32_t index, std::span<const float> values, uint8_t log_energy,
                                   std::vector<uint8_t>* body) {
  const ByteSpan codes(reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes());
  HeaderFields header{.index = index,
                      .count = static_cast<uint32_t>(values.size()),
                      .nonzero = CountNonzero(values),
                      .encoding = ChunkEncoding::kBitmapSparse,
                      .log_energy = log_energy};
  const size_t start = body->size();
  body->resize(start + SparseChunkBytes(header.count, header.nonzero) - kChunkHeaderBytes, 0);
  PackNonzero<uint32_t>(codes, body->data() + start);
  return EncodeHeader(header);
}

ChunkHeaderBytes EncodeChunk(uint32_t index, std::span<const float> values, const ChunkCoding& coding,
                             std::vector<uint8_t>* body, const Kernels& kernels) {
  HeaderFields header{.index = index,
                      .count = static_cast<uint32_t>(values.size()),
                      .dtype = coding.dtype,
                      .log_energy = coding.log_energy};
  if (coding.dtype == DType::kInt8) header.scale = Int8Scale(values, kernels);
  const size_t start = body->size();
  body->resize(start + values.size() * DTypeSize(coding.dtype));
  const MutableByteSpan codes = std::span(*body).subspan(start);
  Quantize(coding.dtype, values, header.scale, coding.rounding, codes, kernels);
  header.nonzero =
      WithCode(coding.dtype, [&](auto code) { return CountNonzeroCodes<decltype(code)>(codes); });
  if (SparseChunkBytes(header.count, header.nonzero, coding.dtype) <
      DenseChunkBytes(header.count, coding.dtype)) {
    header.encoding = ChunkEncoding::kBitmapSparse;
    MakeSparse(coding.dtype, header.count, header.nonzero, start, body);
  }
  return EncodeHeader(header);
}

Result<ChunkView> ParseChunk(ByteSpan bytes) {
  if (bytes.size() < kChunkHeaderBytes) return Malformed("truncated header");
  ChunkHeaderBytes header;
  std::copy_n(bytes.begin(), kChunkHeaderBytes, header.begin());
  return ParseChunk(header, bytes.subspan(kChunkHeaderBytes));
}

Result<ChunkView> ParseChunk(const ChunkHeaderBytes& header, ByteSpan body) {
  ByteReader fields(header);
  ChunkView chunk;
  chunk.index = fields.U32();
  chunk.count = fields.U16();
  chunk.nonzero = fields.U16();
  const uint8_t kind = fields.U8();
  chunk.log_energy = fields.U8();
  chunk.scale = fields.U16();
  if (chunk.count == 0) return Malformed("no elements");
  if (chunk.nonzero > chunk.count) return Malformed("more non-zero elements than elements");
  chunk.dtype = static_cast<DType>(kind >> 4);
  if (DTypeSize(chunk.dtype) == 0) {
    return Status(StatusCode::kSettingsMismatch,
                  "chunk: element type " + std::to_string(kind >> 4) + " is not supported");
  }
  if (chunk.dtype != DType::kInt8 && chunk.scale != 0) return Malformed("a scale without int8");
  if ((chunk.scale & 0x8000) != 0) return Malformed("a negative scale");
  ByteReader reader(body);
  size_t values = chunk.count;
  switch (kind & 0x0f) {
    case static_cast<uint8_t>(ChunkEncoding::kDense):
      chunk.encoding = ChunkEncoding::kDense;
      break;
    case static_cast<uint8_t>(ChunkEncoding::kBitmapSparse):
      chunk.encoding = ChunkEncoding::kBitmapSparse;
      chunk.bitmap = reader.Bytes(BitmapBytes(chunk.count));
      values = chunk.nonzero;
      break;
    default:
      return Malformed("unknown encoding");
  }
  chunk.values = reader.Bytes(values * DTypeSize(chunk.dtype));
  if (!reader.ok()) return Malformed("truncated values");
  if (chunk.encoding == ChunkEncoding::kBitmapSparse &&
      (SetBits(chunk.bitmap) != chunk.nonzero || BitsBeyond(chunk.bitmap, chunk.count))) {
    return Malformed("bitmap disagrees with the number of non-zero elements");
  }
  return chunk;
}

void DecodeChunk(const ChunkView& chunk, std::span<float> out, const Kernels& kernels) {
  LH_CHECK_OP(out.size(), ==, chunk.count);
  if (chunk.encoding == ChunkEncoding::kDense) {
    return Dequantize(chunk.dtype, chunk.values, chunk.scale, Apply::kSet, 1, out, kernels);
  }
  std::fill(out.begin(), out.end(), 0.0f);
  ForEachSparseValue(chunk, kernels, [out](uint32_t i, float value) { out[i] = value; });
}

void DecodeAdd(const ChunkView& chunk, float weight, bool first, std::span<float> sum,
               const Kernels& kernels) {
  LH_CHECK_OP(sum.size(), ==, chunk.count);
  if (chunk.encoding == ChunkEncoding::kDense) {
    return Dequantize(chunk.dtype, chunk.values, chunk.scale, first ? Apply::kScale : Apply::kAdd, weight,
                      sum, kernels);
  }
  if (first) std::fill(sum.begin(), sum.end(), 0.0f);
  ForEachSparseValue(chunk, kernels, [sum, weight, first](uint32_t i, float value) {
    if (first) {
      sum[i] = weight * value;
    } else {
      sum[i] += weight * value;
    }
  });
}

uint32_t CountNonzero(std::span<const float> values) {
  return static_cast<uint32_t>(BestKernels().count_nonzero(values.data(), values.size()));
}

}  // namespace longhaul::codec
