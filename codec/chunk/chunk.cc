#include "codec/chunk/chunk.h"

#include <bit>
#include <cmath>
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

// Calls f(element, code) for the codes that are not zero.
template <typename Code, typename F>
void ForEachNonzero(ByteSpan codes, F f) {
  for (uint32_t i = 0; i < codes.size() / sizeof(Code); ++i) {
    Code code;
    std::memcpy(&code, codes.data() + i * sizeof(Code), sizeof(Code));
    if (!IsZero(code)) f(i, code);
  }
}

// Turns codes of float32, of 16 bits or of a byte (all that have a scale) into a call of `f` with a Code of
// their size.
template <typename F>
auto WithCode(DType dtype, F f) {
  switch (CodeSize(dtype)) {
    case 4:
      return f(uint32_t{});
    case 2:
      return f(uint16_t{});
    default:
      return f(uint8_t{});
  }
}

bool IsPacked(DType dtype) { return DTypeBits(dtype) < 8; }

// What is appended of codes as Quantize has them.
void AppendValues(DType dtype, ByteSpan codes, std::vector<uint8_t>* body) {
  if (!IsPacked(dtype)) {
    body->insert(body->end(), codes.begin(), codes.end());
    return;
  }
  const size_t start = body->size();
  body->resize(start + CodeBytes(codes.size(), dtype));
  PackCodes(dtype, {reinterpret_cast<const int8_t*>(codes.data()), codes.size()},
            std::span(*body).subspan(start));
}

// Appends a chunk's body: where its elements are, and their codes.
void AppendBody(const HeaderFields& header, ByteSpan codes, std::vector<uint8_t>* body) {
  if (header.encoding == ChunkEncoding::kDense) return AppendValues(header.dtype, codes, body);
  const size_t start = body->size();
  std::vector<uint8_t> values(header.nonzero * CodeSize(header.dtype));
  uint8_t* next = values.data();
  std::vector<uint8_t> gaps;
  GapWriter writer(header.count, header.nonzero, &gaps);
  const bool bitmap = header.encoding == ChunkEncoding::kBitmapSparse;
  if (bitmap) body->resize(start + BitmapBytes(header.count), 0);
  WithCode(header.dtype, [&](auto any) {
    using Code = decltype(any);
    ForEachNonzero<Code>(codes, [&](uint32_t i, Code code) {
      std::memcpy(next, &code, sizeof(Code));
      next += sizeof(Code);
      if (bitmap) {
        (*body)[start + i / 8] |= static_cast<uint8_t>(1u << (i % 8));
      } else {
        writer.Add(i);
      }
    });
  });
  AppendValues(header.dtype, values, body);
  if (bitmap) return;
  writer.Finish();
  body->insert(body->end(), gaps.begin(), gaps.end());
}

// Values are decoded so many at a time, which are a whole number of bytes of every type.
constexpr uint32_t kBlock = 64;

// Applies a chunk's values from `first` on. REQUIRES: a multiple of kBlock.
void DecodeValues(const ChunkView& chunk, size_t first, Apply apply, float weight, std::span<float> out,
                  const Kernels& kernels) {
  const ByteSpan values = chunk.values.subspan(CodeBytes(first, chunk.dtype));
  if (!IsPacked(chunk.dtype)) {
    return Dequantize(chunk.dtype, values.first(CodeBytes(out.size(), chunk.dtype)), chunk.scale, apply,
                      weight, out, kernels);
  }
  int8_t codes[kBlock];
  for (size_t at = 0; at < out.size(); at += kBlock) {
    const size_t n = std::min<size_t>(kBlock, out.size() - at);
    UnpackCodes(chunk.dtype, chunk.scale,
                values.subspan(CodeBytes(at, chunk.dtype), CodeBytes(n, chunk.dtype)), {codes, n});
    Dequantize(chunk.dtype, {reinterpret_cast<const uint8_t*>(codes), n}, chunk.scale, apply, weight,
               out.subspan(at, n), kernels);
  }
}

// Calls f(element) for the elements of a sparse chunk that travel, in order; a word of the bitmap at a time.
template <typename F>
void ForEachPosition(const ChunkView& chunk, F f) {
  if (chunk.encoding == ChunkEncoding::kGapSparse) {
    GapReader gaps(chunk.count, chunk.nonzero, chunk.gaps);
    for (uint32_t i = 0; i < chunk.nonzero; ++i) f(gaps.Next());
    return;
  }
  for (uint32_t first = 0; first < chunk.count; first += 32) {
    uint32_t word;  // little-endian, as the bitmap is
    std::memcpy(&word, chunk.bitmap.data() + first / 8, sizeof(word));
    for (; word != 0; word &= word - 1) f(first + static_cast<uint32_t>(std::countr_zero(word)));
  }
}

// Calls f(element, value) for the values of a sparse chunk, in order.
template <typename F>
void ForEachSparseValue(const ChunkView& chunk, const Kernels& kernels, F f) {
  float values[kBlock];
  uint32_t next = 0;
  ForEachPosition(chunk, [&](uint32_t element) {
    if (next % kBlock == 0) {
      DecodeValues(chunk, next, Apply::kSet, 1,
                   std::span(values).first(std::min(kBlock, chunk.nonzero - next)), kernels);
    }
    f(element, values[next++ % kBlock]);
  });
}

// Of independent elements one chunk in 700 has more than so many standard deviations above the expected
// number that travel; what has no room waits for the next gradient, and is found by a sort.
constexpr double kRoom = 3;

// How many float32 chunks' elements go into one of the gradient's: as many as fit in the symbol, of a share
// the most of which the expected number and kRoom fit. One or an even number, for results' chunks.
uint32_t GradientRatio(const ChunkGeometry& base, const WireFormat& format) {
  const size_t symbol_bytes = DenseChunkBytes(base.chunk_elements);
  const uint32_t most = kMaxChunkElements / base.chunk_elements;
  if (format.topk_share <= 0) return std::max(1u, std::min(WireRatio(format.gradient), most) / 2 * 2);
  const auto fits = [&](uint32_t pairs) {
    const uint32_t count = base.chunk_elements * 2 * pairs;
    const double expected = format.topk_share * count;
    return std::min<double>(expected + kRoom * std::sqrt(expected), count) <=
           SparseCapacity(symbol_bytes, count, format.gradient);
  };
  uint32_t pairs = 0;  // the most that fit
  for (uint32_t beyond = most / 2 + 1; beyond - pairs > 1;) {
    const uint32_t middle = (pairs + beyond) / 2;
    (fits(middle) ? pairs : beyond) = middle;
  }
  return std::max(1u, 2 * pairs);
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
  LH_CHECK(DTypeBits(dtype) != 0);
  return static_cast<uint32_t>(8 * sizeof(float) / DTypeBits(dtype));
}

ChunkGeometry GradientGeometry(const ChunkGeometry& base, const WireFormat& format) {
  return Longer(base, GradientRatio(base, format));
}

ChunkGeometry ResultGeometry(const ChunkGeometry& base, const WireFormat& format) {
  const uint32_t most = GradientRatio(base, format);
  return Longer(base, std::min(WireRatio(format.result), most));
}

size_t DenseChunkBytes(uint32_t count, DType dtype) { return kChunkHeaderBytes + CodeBytes(count, dtype); }

size_t SparseChunkBytes(uint32_t count, uint32_t nonzero, DType dtype) {
  return kChunkHeaderBytes + BitmapBytes(count) + CodeBytes(nonzero, dtype);
}

size_t MostGapChunkBytes(uint32_t count, uint32_t nonzero, DType dtype) {
  return kChunkHeaderBytes + CodeBytes(nonzero, dtype) + MostGapBytes(count, nonzero);
}

uint32_t SparseCapacity(size_t symbol_bytes, uint32_t count, DType dtype) {
  if (DenseChunkBytes(count, dtype) <= symbol_bytes) return count;
  const auto fits = [&](uint32_t nonzero) {
    return std::min(SparseChunkBytes(count, nonzero, dtype), MostGapChunkBytes(count, nonzero, dtype)) <=
           symbol_bytes;
  };
  uint32_t most = 0;
  for (uint32_t beyond = count + 1; beyond - most > 1;) {
    const uint32_t middle = most + (beyond - most) / 2;
    (fits(middle) ? most : beyond) = middle;
  }
  return most;
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
  const HeaderFields header{.index = index,
                            .count = static_cast<uint32_t>(values.size()),
                            .nonzero = CountNonzero(values),
                            .encoding = ChunkEncoding::kBitmapSparse,
                            .log_energy = log_energy};
  AppendBody(header, codes, body);
  return EncodeHeader(header);
}

ChunkHeaderBytes EncodeChunk(uint32_t index, std::span<const float> values, const ChunkCoding& coding,
                             std::vector<uint8_t>* body, const Kernels& kernels) {
  const DType dtype = coding.dtype;
  HeaderFields header{.index = index,
                      .count = static_cast<uint32_t>(values.size()),
                      .dtype = dtype,
                      .log_energy = coding.log_energy,
                      .scale = ScaleOf(dtype, values, coding.rounding, kernels)};
  // A dense body of whole bytes is written where it stays. Codes of fewer bits are longer here than in the
  // end.
  const bool packed = IsPacked(dtype);
  const size_t start = body->size();
  std::vector<uint8_t> aside(packed ? values.size() : 0);
  if (!packed) body->resize(start + values.size() * CodeSize(dtype));
  const MutableByteSpan codes = packed ? MutableByteSpan(aside) : std::span(*body).subspan(start);
  Quantize(dtype, values, header.scale, coding.rounding, codes, kernels);
  WithCode(dtype, [&](auto code) {
    ForEachNonzero<decltype(code)>(codes, [&](uint32_t, auto) { ++header.nonzero; });
  });
  const size_t dense = DenseChunkBytes(header.count, dtype);
  const size_t bitmap = SparseChunkBytes(header.count, header.nonzero, dtype);
  const size_t gaps = MostGapChunkBytes(header.count, header.nonzero, dtype);
  if (gaps < std::min(dense, bitmap)) {
    header.encoding = ChunkEncoding::kGapSparse;
  } else if (bitmap < dense) {
    header.encoding = ChunkEncoding::kBitmapSparse;
  } else if (!packed) {
    return EncodeHeader(header);
  }
  if (!packed) {
    aside.assign(codes.begin(), codes.end());
    body->resize(start);
  }
  AppendBody(header, aside, body);
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
  if (DTypeBits(chunk.dtype) == 0) {
    return Status(StatusCode::kSettingsMismatch,
                  "chunk: element type " + std::to_string(kind >> 4) + " is not supported");
  }
  if (!HasScale(chunk.dtype) && chunk.scale != 0) return Malformed("a scale of a type that has none");
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
    case static_cast<uint8_t>(ChunkEncoding::kGapSparse):
      chunk.encoding = ChunkEncoding::kGapSparse;
      values = chunk.nonzero;
      break;
    default:
      return Malformed("unknown encoding");
  }
  chunk.values = reader.Bytes(CodeBytes(values, chunk.dtype));
  if (!reader.ok()) return Malformed("truncated values");
  if (const size_t bits = values * DTypeBits(chunk.dtype) % 8; bits != 0 && chunk.values.back() >> bits != 0)
    return Malformed("bits after the last value");
  if (chunk.encoding == ChunkEncoding::kBitmapSparse &&
      (SetBits(chunk.bitmap) != chunk.nonzero || BitsBeyond(chunk.bitmap, chunk.count))) {
    return Malformed("bitmap disagrees with the number of non-zero elements");
  }
  if (chunk.encoding == ChunkEncoding::kGapSparse) {
    const ByteSpan rest = reader.Rest();
    GapReader gaps(chunk.count, chunk.nonzero, rest);
    for (uint32_t i = 0; i < chunk.nonzero; ++i) {
      if (gaps.Next() == chunk.count) return Malformed("gaps end early, or go beyond the last element");
    }
    if (!gaps.padded()) return Malformed("bits after the last gap");
    chunk.gaps = rest.first(gaps.used());
  }
  return chunk;
}

void DecodeChunk(const ChunkView& chunk, std::span<float> out, const Kernels& kernels) {
  LH_CHECK_OP(out.size(), ==, chunk.count);
  if (chunk.encoding == ChunkEncoding::kDense) {
    return DecodeValues(chunk, 0, Apply::kSet, 1, out, kernels);
  }
  std::fill(out.begin(), out.end(), 0.0f);
  ForEachSparseValue(chunk, kernels, [out](uint32_t i, float value) { out[i] = value; });
}

void DecodeAdd(const ChunkView& chunk, float weight, bool first, std::span<float> sum,
               const Kernels& kernels) {
  LH_CHECK_OP(sum.size(), ==, chunk.count);
  if (chunk.encoding == ChunkEncoding::kDense) {
    return DecodeValues(chunk, 0, first ? Apply::kScale : Apply::kAdd, weight, sum, kernels);
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
