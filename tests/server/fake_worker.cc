#include "tests/server/fake_worker.h"

#include <cstring>

namespace longhaul::server {

std::vector<uint8_t> FakeWorker::EncodeChunk(uint32_t chunk, const std::vector<float>& values) {
  const auto header = codec::EncodeDenseHeader(chunk, static_cast<uint32_t>(values.size()));
  std::vector<uint8_t> bytes(header.begin(), header.end());
  bytes.resize(header.size() + values.size() * sizeof(float));
  std::memcpy(bytes.data() + header.size(), values.data(), values.size() * sizeof(float));
  return bytes;
}

std::vector<uint8_t> FakeWorker::EncodeMetadata(const codec::WindowMetadata& metadata) {
  return codec::EncodeWindowMetadata(metadata);
}

std::vector<std::pair<uint32_t, std::vector<float>>> FakeWorker::ChunksOf(
    const transport::FakeConnection::Window& window) {
  std::vector<std::pair<uint32_t, std::vector<float>>> chunks;
  for (const auto& submitted : window.chunks) {
    const std::vector<uint8_t> bytes = submitted.Bytes();
    const auto chunk = codec::ParseChunk(bytes);
    EXPECT_TRUE(chunk.ok());
    std::vector<float> values(chunk->count);
    codec::DecodeChunk(*chunk, values);
    chunks.emplace_back(chunk->index, values);
  }
  return chunks;
}

}  // namespace longhaul::server
