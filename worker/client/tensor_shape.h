// What worker and server agree on about a tensor once it is declared.
#pragma once

#include <cstdint>

#include "codec/chunk/chunk.h"
#include "longhaul/tensor.h"
#include "longhaul/units.h"

namespace longhaul::worker {

struct TensorShape {
  uint32_t key = 0;  // the server's name for the tensor
  DType dtype = DType::kFloat32;
  // The base geometry: chunk_elements follow from the job's symbol length, the same everywhere.
  codec::ChunkGeometry geometry;
  codec::WireFormat format = {};  // of what travels; initial values are float32 in base chunks

  ByteCount bytes() const { return ByteCount(static_cast<int64_t>(geometry.count * DTypeBits(dtype) / 8)); }
  codec::ChunkGeometry gradient() const { return codec::GradientGeometry(geometry, format); }
  codec::ChunkGeometry result() const { return codec::ResultGeometry(geometry, format); }
};

}  // namespace longhaul::worker
