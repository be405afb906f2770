#include "worker/client/pull_assembler.h"

#include <string>

#include "base/check.h"
#include "codec/chunk/chunk.h"

namespace longhaul::worker {

PullAssembler::PullAssembler(const TensorShape& shape, std::span<float> out)
    : geometry_(shape.result()), out_(out), received_(geometry_.chunks()) {
  LH_CHECK_OP(out.size(), ==, shape.geometry.count);
}

Status PullAssembler::CheckWindow(const TensorShape& shape, const codec::WindowMetadata& metadata,
                                  const wire::WindowOpenFrame& open) {
  const auto differs = [](const std::string& what, uint64_t theirs, uint64_t ours) {
    return Status(StatusCode::kSettingsMismatch, "result with " + what + " " + std::to_string(theirs) +
                                                     ", expected " + std::to_string(ours));
  };
  if (metadata.kind != codec::WindowKind::kWeights && metadata.kind != codec::WindowKind::kAggregate) {
    return {StatusCode::kProtocolViolation, "window that carries no result"};
  }
  if (metadata.key != shape.key) return differs("tensor key", metadata.key, shape.key);
  if (metadata.dtype != shape.format.result) {
    return differs("element type", static_cast<uint64_t>(metadata.dtype),
                   static_cast<uint64_t>(shape.format.result));
  }
  const codec::ChunkGeometry geometry = shape.result();
  if (metadata.count != geometry.count) return differs("elements", metadata.count, geometry.count);
  if (metadata.chunk_elements != geometry.chunk_elements) {
    return differs("elements per chunk", metadata.chunk_elements, geometry.chunk_elements);
  }
  const uint64_t chunks = uint64_t{open.high_count} + open.low_count;
  if (chunks != geometry.chunks()) return differs("chunks", chunks, geometry.chunks());
  return Status::Ok();
}

Status PullAssembler::OnChunk(ByteSpan bytes) {
  const auto chunk = codec::ParseChunk(bytes);
  if (!chunk.ok()) return chunk.status();
  if (chunk->index >= geometry_.chunks() || chunk->count != geometry_.Length(chunk->index)) {
    return {StatusCode::kProtocolViolation, "chunk " + std::to_string(chunk->index) + " with " +
                                                std::to_string(chunk->count) + " elements is out of place"};
  }
  // Test and set before writing: a repeated chunk must not touch memory that its owner may be reading.
  if (received_.Set(chunk->index)) codec::DecodeChunk(*chunk, geometry_.Elements(out_, chunk->index));
  return Status::Ok();
}

}  // namespace longhaul::worker
