// How a tensor is cut into chunks: fixed from its declaration on, the same for every worker.
#pragma once

#include <algorithm>
#include <cstdint>

namespace longhaul::server {

struct ChunkGeometry {
  uint64_t count = 0;           // elements of the tensor, >= 1
  uint32_t chunk_elements = 1;  // elements of every chunk but the last, which may be shorter

  uint32_t chunks() const { return static_cast<uint32_t>((count + chunk_elements - 1) / chunk_elements); }
  uint64_t First(uint32_t chunk) const { return static_cast<uint64_t>(chunk) * chunk_elements; }
  uint32_t Length(uint32_t chunk) const {
    return static_cast<uint32_t>(std::min<uint64_t>(chunk_elements, count - First(chunk)));
  }
};

}  // namespace longhaul::server
