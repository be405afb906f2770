#include "codec/chunk/window_metadata.h"

#include <cmath>
#include <string>

#include "base/check.h"
#include "codec/chunk/chunk.h"
#include "longhaul/options.h"
#include "proto/frames.h"

namespace longhaul::codec {
namespace {

Status Bad(const char* field) {
  return Status(StatusCode::kProtocolViolation, std::string("window metadata: bad ") + field);
}

}  // namespace

std::vector<uint8_t> EncodeWindowMetadata(const WindowMetadata& m) {
  std::vector<uint8_t> bytes(kWindowMetadataBytes);
  ByteWriter writer(bytes);
  writer.U8(static_cast<uint8_t>(m.kind));
  writer.U8(m.wants_result ? 1 : 0);
  writer.U8(static_cast<uint8_t>(m.dtype));
  writer.U8(0);
  writer.U32(m.key);
  writer.U32(m.request);
  writer.U64(m.round);
  writer.U64(m.count);
  writer.U32(m.chunk_elements);
  writer.F32(m.weight);
  writer.F32(m.total_low_energy);
  writer.U32(0);
  writer.U32(m.shift_epoch);
  writer.U64(m.shift_epoch_round);
  LH_CHECK(writer.ok() && writer.size() == kWindowMetadataBytes);
  return bytes;
}

Result<WindowMetadata> DecodeWindowMetadata(ByteSpan bytes) {
  if (bytes.size() != kWindowMetadataBytes) return Bad("length");
  ByteReader reader(bytes);
  WindowMetadata m;
  const uint8_t kind = reader.U8();
  if (kind > static_cast<uint8_t>(WindowKind::kAggregate)) return Bad("kind");
  m.kind = static_cast<WindowKind>(kind);
  const uint8_t flags = reader.U8();
  if (flags > 1) return Bad("flags");
  m.wants_result = flags == 1;
  m.dtype = static_cast<DType>(reader.U8());
  if (DTypeBits(m.dtype) == 0) return Bad("element type");
  if (reader.U8() != 0) return Bad("reserved byte");
  m.key = reader.U32();
  m.request = reader.U32();
  m.round = reader.U64();
  m.count = reader.U64();
  if (m.count == 0) return Bad("element count");
  m.chunk_elements = reader.U32();
  if (m.chunk_elements == 0 || m.chunk_elements > kMaxChunkElements) return Bad("chunk size");
  if ((m.count - 1) / m.chunk_elements >= wire::kMaxWindowChunks) return Bad("element count");
  m.weight = reader.F32();
  if (!(m.weight >= kMinWeight && m.weight <= kMaxWeight)) return Bad("weight");
  m.total_low_energy = reader.F32();
  if (!std::isfinite(m.total_low_energy) || m.total_low_energy < 0) return Bad("energy");
  if (reader.U32() != 0) return Bad("reserved word");
  m.shift_epoch = reader.U32();
  m.shift_epoch_round = reader.U64();
  return m;
}

}  // namespace longhaul::codec
