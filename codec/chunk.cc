#include "codec/chunk.h"

#include <bit>
#include <cstring>
#include <string>

#include "base/check.h"

namespace longhaul::codec {
namespace {

static_assert(std::endian::native == std::endian::little, "values travel as they are in memory");

size_t BitmapBytes(uint32_t count) { return ((count + 7) / 8 + 3) / 4 * 4; }

ChunkHeaderBytes EncodeHeader(uint32_t index, uint32_t count, uint32_t nonzero, ChunkEncoding encoding,
                              uint8_t log_energy) {
  LH_CHECK_OP(count, <=, kMaxChunkElements);
  LH_CHECK_OP(nonzero, <=, count);
  ChunkHeaderBytes bytes{};
  ByteWriter writer(bytes);
  writer.U32(index);
  writer.U16(static_cast<uint16_t>(count));
  writer.U16(static_cast<uint16_t>(nonzero));
  writer.U8(
      static_cast<uint8_t>(static_cast<unsigned>(DType::kFloat32) << 4 | static_cast<unsigned>(encoding)));
  writer.U8(log_energy);
  writer.U16(0);
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

}  // namespace

uint32_t ChunkElementsFor(size_t symbol_bytes) {
  LH_CHECK_OP(symbol_bytes, >=, kChunkHeaderBytes + sizeof(float));
  return static_cast<uint32_t>(
      std::min<size_t>((symbol_bytes - kChunkHeaderBytes) / sizeof(float), kMaxChunkElements));
}

size_t DenseChunkBytes(uint32_t count) { return kChunkHeaderBytes + size_t{count} * sizeof(float); }

size_t SparseChunkBytes(uint32_t count, uint32_t nonzero) {
  return kChunkHeaderBytes + BitmapBytes(count) + size_t{nonzero} * sizeof(float);
}

ChunkHeaderBytes EncodeDenseHeader(uint32_t index, uint32_t count, uint32_t nonzero, uint8_t log_energy) {
  return EncodeHeader(index, count, nonzero, ChunkEncoding::kDense, log_energy);
}

ChunkHeaderBytes EncodeDenseHeader(uint32_t index, uint32_t count) {
  return EncodeHeader(index, count, count, ChunkEncoding::kDense, 0);
}

ChunkHeaderBytes EncodeSparseChunk(uint32_t index, std::span<const float> values, uint8_t log_energy,
                                   std::vector<uint8_t>* body) {
  const auto count = static_cast<uint32_t>(values.size());
  const size_t start = body->size();
  body->resize(start + BitmapBytes(count), 0);
  uint32_t nonzero = 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (values[i] == 0.0f) continue;
    (*body)[start + i / 8] |= static_cast<uint8_t>(1u << (i % 8));
    const auto* raw = reinterpret_cast<const uint8_t*>(&values[i]);
    body->insert(body->end(), raw, raw + sizeof(float));
    ++nonzero;
  }
  return EncodeHeader(index, count, nonzero, ChunkEncoding::kBitmapSparse, log_energy);
}

Result<ChunkView> ParseChunk(ByteSpan bytes) {
  ByteReader reader(bytes);
  ChunkView chunk;
  chunk.index = reader.U32();
  chunk.count = reader.U16();
  chunk.nonzero = reader.U16();
  const uint8_t kind = reader.U8();
  chunk.log_energy = reader.U8();
  const uint16_t reserved = reader.U16();
  if (!reader.ok()) return Malformed("truncated header");
  if (reserved != 0) return Malformed("reserved bits are set");
  if (chunk.count == 0) return Malformed("no elements");
  if (chunk.nonzero > chunk.count) return Malformed("more non-zero elements than elements");
  chunk.dtype = static_cast<DType>(kind >> 4);
  if (chunk.dtype != DType::kFloat32) {
    return Status(StatusCode::kSettingsMismatch,
                  "chunk: element type " + std::to_string(kind >> 4) + " is not supported");
  }
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
  chunk.values = reader.Bytes(values * sizeof(float));
  if (!reader.ok()) return Malformed("truncated values");
  if (chunk.encoding == ChunkEncoding::kBitmapSparse &&
      (SetBits(chunk.bitmap) != chunk.nonzero || BitsBeyond(chunk.bitmap, chunk.count))) {
    return Malformed("bitmap disagrees with the number of non-zero elements");
  }
  return chunk;
}

void DecodeChunk(const ChunkView& chunk, std::span<float> out) {
  LH_CHECK_OP(out.size(), ==, chunk.count);
  if (chunk.encoding == ChunkEncoding::kDense) {
    std::memcpy(out.data(), chunk.values.data(), chunk.values.size());
    return;
  }
  size_t next = 0;
  for (uint32_t i = 0; i < chunk.count; ++i) {
    out[i] = 0.0f;
    if ((chunk.bitmap[i / 8] >> (i % 8) & 1) == 0) continue;
    std::memcpy(&out[i], chunk.values.data() + next, sizeof(float));
    next += sizeof(float);
  }
}

uint32_t CountNonzero(std::span<const float> values) {
  return static_cast<uint32_t>(
      std::count_if(values.begin(), values.end(), [](float v) { return v != 0.0f; }));
}

}  // namespace longhaul::codec
