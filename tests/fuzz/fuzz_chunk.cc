// Chunks and window metadata. The first byte chooses: any bytes as a chunk, any bytes as metadata, any floats
// through the sparse encoder and back, any floats as any element type and back, or any positions as gaps and
// back.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "codec/chunk/chunk.h"
#include "codec/chunk/window_metadata.h"
#include "tests/fuzz/property.h"

using namespace longhaul;         // NOLINT
using namespace longhaul::codec;  // NOLINT

namespace {

bool Inside(ByteSpan part, ByteSpan whole) {
  return part.empty() ||
         (part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size());
}

bool SameBits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

std::vector<uint8_t> Join(const ChunkHeaderBytes& header, ByteSpan body) {
  std::vector<uint8_t> bytes(header.begin(), header.end());
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

// Plain and wide kernels say the same, and DecodeAdd what DecodeChunk says.
std::vector<float> Decoded(const ChunkView& chunk) {
  std::vector<float> values(chunk.count, 1.0f);
  std::vector<float> plain(chunk.count, 2.0f);
  std::vector<float> once(chunk.count, 3.0f);
  DecodeChunk(chunk, values);
  DecodeChunk(chunk, plain, PlainKernels());
  DecodeAdd(chunk, 1.0f, /*first=*/true, once);
  for (size_t i = 0; i < values.size(); ++i) {
    FUZZ_REQUIRE(SameBits(values[i], plain[i]));
    FUZZ_REQUIRE(values[i] == once[i] || (std::isnan(values[i]) && std::isnan(once[i])));
  }
  return values;
}

// Gaps that were found valid are those that their positions are written as.
void AnyGaps(const ChunkView& chunk) {
  GapReader reader(chunk.count, chunk.nonzero, chunk.gaps);
  std::vector<uint8_t> again;
  GapWriter writer(chunk.count, chunk.nonzero, &again);
  uint32_t next = 0;
  for (uint32_t i = 0; i < chunk.nonzero; ++i) {
    const uint32_t position = reader.Next();
    FUZZ_REQUIRE(position >= next && position < chunk.count);
    next = position + 1;
    writer.Add(position);
  }
  writer.Finish();
  FUZZ_REQUIRE(std::ranges::equal(again, chunk.gaps));
  FUZZ_REQUIRE(again.size() <= MostGapBytes(chunk.count, chunk.nonzero));
}

void AnyChunk(ByteSpan input) {
  const Result<ChunkView> chunk = ParseChunk(input);
  if (!chunk.ok()) {
    FUZZ_REQUIRE(chunk.status().code() == StatusCode::kProtocolViolation ||
                 chunk.status().code() == StatusCode::kSettingsMismatch);
    return;
  }
  FUZZ_REQUIRE(chunk->count >= 1 && chunk->count <= kMaxChunkElements);
  FUZZ_REQUIRE(chunk->nonzero <= chunk->count);
  FUZZ_REQUIRE(Inside(chunk->bitmap, input) && Inside(chunk->values, input) && Inside(chunk->gaps, input));
  FUZZ_REQUIRE(chunk->scale == 0 || HasScale(chunk->dtype));
  const std::vector<float> values = Decoded(*chunk);
  const ByteSpan header = input.first(kChunkHeaderBytes);
  const bool dense = chunk->encoding == ChunkEncoding::kDense;
  const bool gaps = chunk->encoding == ChunkEncoding::kGapSparse;
  FUZZ_REQUIRE(chunk->values.size() == CodeBytes(dense ? chunk->count : chunk->nonzero, chunk->dtype));
  if (gaps) return AnyGaps(*chunk);
  const size_t size = dense ? DenseChunkBytes(chunk->count, chunk->dtype)
                            : SparseChunkBytes(chunk->count, chunk->nonzero, chunk->dtype);
  FUZZ_REQUIRE(size <= input.size());
  if (chunk->dtype != DType::kFloat32) return;
  if (dense) {
    const ChunkHeaderBytes again =
        EncodeDenseHeader(chunk->index, chunk->count, chunk->nonzero, chunk->log_energy);
    FUZZ_REQUIRE(std::equal(again.begin(), again.end(), header.begin(), header.end()));
    FUZZ_REQUIRE(std::memcmp(values.data(), chunk->values.data(), chunk->values.size()) == 0);
    return;
  }
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

// Any floats as any type: they arrive as a code next to them, and what has arrived arrives again unchanged.
void AnyFloatsShorter(ByteSpan input) {
  if (input.empty()) return;
  const auto dtype = static_cast<DType>(input[0] % 6);
  const bool stochastic = (input[0] & 8) != 0;
  input = input.subspan(1);
  std::vector<float> values(std::min<size_t>(input.size() / sizeof(float), 2000));
  if (values.empty()) return;
  std::memcpy(values.data(), input.data(), values.size() * sizeof(float));
  const auto count = static_cast<uint32_t>(values.size());
  const size_t symbol_bytes = kChunkHeaderBytes + input.back() * size_t{8};
  ChunkCoding coding{.dtype = dtype, .rounding = {stochastic, 5}, .log_energy = 1};
  std::vector<uint8_t> body;
  const ChunkHeaderBytes header = EncodeChunk(3, values, coding, &body);
  std::vector<uint8_t> plain_body;
  FUZZ_REQUIRE(header == EncodeChunk(3, values, coding, &plain_body, PlainKernels()) && body == plain_body);
  FUZZ_REQUIRE(header.size() + body.size() <= DenseChunkBytes(count, dtype));
  std::vector<uint8_t> bytes = Join(header, body);
  bytes.resize(bytes.size() + 16, 0);
  const Result<ChunkView> chunk = ParseChunk(bytes);
  FUZZ_REQUIRE(chunk.ok() && chunk->dtype == dtype && chunk->count == count);
  FUZZ_REQUIRE(ParseChunk(header, body).ok());
  const std::vector<float> arrived = Decoded(*chunk);
  const bool finite = std::ranges::all_of(values, [](float v) { return std::isfinite(v); });
  for (size_t i = 0; i < values.size(); ++i) {
    if (finite) FUZZ_REQUIRE(std::isfinite(arrived[i]));
    if (std::isnan(values[i])) FUZZ_REQUIRE(std::isnan(arrived[i]));
    if (finite && values[i] != 0 && arrived[i] != 0) {
      FUZZ_REQUIRE(std::signbit(arrived[i]) == std::signbit(values[i]));
    }
  }
  if (chunk->nonzero <= SparseCapacity(symbol_bytes, count, dtype))
    FUZZ_REQUIRE(header.size() + body.size() <= std::max(symbol_bytes, DenseChunkBytes(1)));
  if (HasScale(dtype)) return;  // another scale
  body.clear();
  const ChunkHeaderBytes again = EncodeChunk(3, arrived, coding, &body);
  const std::vector<uint8_t> bytes_again = Join(again, body);
  const Result<ChunkView> second = ParseChunk(bytes_again);
  FUZZ_REQUIRE(second.ok());
  const std::vector<float> unchanged = Decoded(*second);
  for (size_t i = 0; i < arrived.size(); ++i) {
    FUZZ_REQUIRE(arrived[i] == unchanged[i] || (std::isnan(arrived[i]) && std::isnan(unchanged[i])));
  }
}

// Any positions, each byte a distance of up to 255 to the next, or of so many times 256.
void AnyPositions(ByteSpan input) {
  std::vector<float> values;
  for (size_t i = 0; i + 1 < input.size() && values.size() < kMaxChunkElements / 2; i += 2) {
    values.resize(values.size() + (input[i] % 4 == 0 ? 256 * (input[i] / 4) : input[i + 1]), 0.0f);
    values.push_back(input[i + 1] % 2 == 0 ? 1.0f : -1.0f);
  }
  if (values.empty()) return;
  values.resize(std::min<size_t>(values.size() + 16 * input.back(), kMaxChunkElements), 0.0f);
  for (const DType dtype : {DType::kFloat32, DType::kInt8, DType::kInt4, DType::kInt2}) {
    std::vector<uint8_t> body;
    const ChunkHeaderBytes header = EncodeChunk(7, values, {.dtype = dtype}, &body);
    const Result<ChunkView> chunk = ParseChunk(header, body);
    FUZZ_REQUIRE(chunk.ok());
    if (chunk->encoding == ChunkEncoding::kGapSparse) AnyGaps(*chunk);
    const std::vector<float> arrived = Decoded(*chunk);
    for (size_t i = 0; i < values.size(); ++i) {
      FUZZ_REQUIRE((arrived[i] == 0) == (values[i] == 0) || chunk->encoding == ChunkEncoding::kDense);
      FUZZ_REQUIRE(values[i] == 0 || std::abs(arrived[i] - values[i]) < 0.1f);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const ByteSpan input(data + 1, size - 1);
  switch (data[0] % 5) {
    case 0:
      AnyChunk(input);
      break;
    case 1:
      AnyMetadata(input);
      break;
    case 2:
      AnyFloats(input);
      break;
    case 3:
      AnyPositions(input);
      break;
    default:
      AnyFloatsShorter(input);
      break;
  }
  return 0;
}
