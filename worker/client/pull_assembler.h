// Puts a tensor together from the chunks of a result window, of any element type, straight into the caller's
// memory.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "codec/chunk/window_metadata.h"
#include "longhaul/status.h"
#include "transport/core/window/window_types.h"
#include "worker/client/tensor_shape.h"

namespace longhaul::worker {

class PullAssembler {
 public:
  // `out` is borrowed. REQUIRES: out.size() == the tensor's count.
  PullAssembler(const TensorShape& shape, std::span<float> out);

  // Whether a window with this metadata can bring this tensor. kSettingsMismatch names what differs.
  static Status CheckWindow(const TensorShape& shape, const codec::WindowMetadata& metadata,
                            const wire::WindowOpenFrame& open);

  // One chunk as it arrived (a chunk rebuilt by FEC has trailing zeros). Chunks that are here already change
  // nothing. Errors: kProtocolViolation (the chunk does not belong to this tensor); nothing is written.
  Status OnChunk(ByteSpan chunk);

  bool complete() const { return received_.count() == received_.size(); }
  uint32_t chunks_received() const { return received_.count(); }
  const transport::ChunkBitmap& received() const { return received_; }

 private:
  codec::ChunkGeometry geometry_;
  std::span<float> out_;
  transport::ChunkBitmap received_;
};

}  // namespace longhaul::worker
