// Chunks and window metadata. The first byte chooses: any bytes as a chunk, any bytes as metadata, or any
// floats through the sparse encoder and back.
#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "codec/chunk.h"
#include "codec/window_metadata.h"
#include "tests/fuzz/property.h"

using namespace longhaul;         // NOLINT
using namespace longhaul::codec;  // NOLINT

namespace {

bool Inside(ByteSpan part, ByteSpan whole) {
  return part.empty() ||
         (part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size());
}

bool SameBits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

void AnyChunk(ByteSpan input) {
  const Result<ChunkView> chunk = ParseChunk(input);
  if (!chunk.ok()) {
    FUZZ_REQUIRE(chunk.status().code() == StatusCode::kProtocolViolation ||
                 chunk.status().code() == StatusCode::kSettingsMismatch);
    return;
  }
  FUZZ_REQUIRE(chunk->count >= 1 && chunk->count <= kMaxChunkElements);
  FUZZ_REQUIRE(chunk->nonzero <= chunk->count);
  FUZZ_REQUIRE(Inside(chunk->bitmap, input) && Inside(chunk->values, input));
  std::vector<float> values(chunk->count);
  DecodeChunk(*chunk, values);
  const ByteSpan header = input.first(kChunkHeaderBytes);
  if (chunk->encoding == ChunkEncoding::kDense) {
    const ChunkHeaderBytes again =
        EncodeDenseHeader(chunk->index, chunk->count, chunk->nonzero, chunk->log_energy);
    FUZZ_REQUIRE(std::equal(again.begin(), again.end(), header.begin(), header.end()));
    FUZZ_REQUIRE(chunk->values.size() + kChunkHeaderBytes == DenseChunkBytes(chunk->count));
    FUZZ_REQUIRE(std::memcmp(values.data(), chunk->values.data(), chunk->values.size()) == 0);
    return;
  }
  const size_t size = SparseChunkBytes(chunk->count, chunk->nonzero);
  FUZZ_REQUIRE(size <= input.size());
  FUZZ_REQUIRE(CountNonzero(values) <= chunk->nonzero);
  if (CountNonzero(values) < chunk->nonzero)
    return;  // a zero among the values: legal, but not how we write it
  std::vector<uint8_t> body;
  const ChunkHeaderBytes again = EncodeSparseChunk(chunk->index, values, chunk->log_energy, &body);
  FUZZ_REQUIRE(std::equal(again.begin(), again.end(), header.begin(), header.end()));
  FUZZ_REQUIRE(std::equal(body.begin(), body.end(), input.begin() + kChunkHeaderBytes,
                          input.begin() + static_cast<std::ptrdiff_t>(size)));
}

void AnyMetadata(ByteSpan input) {
  const Result<WindowMetadata> metadata = DecodeWindowMetadata(input);
  if (!metadata.ok()) {
    FUZZ_REQUIRE(metadata.status().code() == StatusCode::kProtocolViolation);
    return;
  }
  const std::vector<uint8_t> again = EncodeWindowMetadata(*metadata);
  FUZZ_REQUIRE(std::equal(again.begin(), again.end(), input.begin(), input.end()));
}

void AnyFloats(ByteSpan input) {
  std::vector<float> values(std::min<size_t>(input.size() / sizeof(float), kMaxChunkElements));
  if (values.empty()) return;
  std::memcpy(values.data(), input.data(), values.size() * sizeof(float));
  std::vector<uint8_t> body;
  const ChunkHeaderBytes header = EncodeSparseChunk(7, values, 3, &body);
  std::vector<uint8_t> bytes(header.begin(), header.end());
  bytes.insert(bytes.end(), body.begin(), body.end());
  FUZZ_REQUIRE(bytes.size() == SparseChunkBytes(static_cast<uint32_t>(values.size()), CountNonzero(values)));
  bytes.resize(bytes.size() + 16, 0);  // the padding of a symbol
  const Result<ChunkView> chunk = ParseChunk(bytes);
  FUZZ_REQUIRE(chunk.ok());
  FUZZ_REQUIRE(chunk->nonzero == CountNonzero(values));
  std::vector<float> out(values.size(), 1.0f);
  DecodeChunk(*chunk, out);
  for (size_t i = 0; i < values.size(); ++i) {
    FUZZ_REQUIRE(values[i] == 0.0f ? SameBits(out[i], 0.0f) : SameBits(out[i], values[i]));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const ByteSpan input(data + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      AnyChunk(input);
      break;
    case 1:
      AnyMetadata(input);
      break;
    default:
      AnyFloats(input);
      break;
  }
  return 0;
}
