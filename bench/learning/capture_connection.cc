#include "bench/learning/capture_connection.h"

#include <algorithm>

namespace longhaul::bench {

Status CaptureConnection::OpenWindow(const transport::WindowOptions& options) {
  Window& window = windows_[options.key.id];
  window.options = options;
  window.high.clear();
  window.low.clear();
  return Status::Ok();
}

Status CaptureConnection::SubmitChunk(transport::WindowKey key, wire::ReliabilityClass reliability,
                                      ByteSpan header, ByteSpan body) {
  const auto found = windows_.find(key.id);
  if (found == windows_.end()) return {StatusCode::kNotFound, "no such window"};
  Window& window = found->second;
  const bool high = reliability == wire::ReliabilityClass::kHigh;
  std::vector<Chunk>& chunks = high ? window.high : window.low;
  if (chunks.size() >= (high ? window.options.high_count : window.options.low_count)) {
    return {StatusCode::kFailedPrecondition, "class full"};
  }
  Chunk chunk;
  if (header.size() > chunk.header.size() || header.size() + body.size() > window.options.symbol_bytes) {
    return {StatusCode::kInvalidArgument, "chunk too long"};
  }
  std::copy(header.begin(), header.end(), chunk.header.begin());
  chunk.header_bytes = header.size();
  chunk.body = body;
  chunks.push_back(chunk);
  return Status::Ok();
}

}  // namespace longhaul::bench
