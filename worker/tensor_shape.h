// How a tensor is cut into chunks: a function of its size and of the job's symbol length, the same
// everywhere.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "longhaul/tensor.h"

namespace longhaul::worker {

struct TensorShape {
  uint32_t key = 0;  // the server's name for the tensor
  DType dtype = DType::kFloat32;
  uint64_t count = 0;           // elements, >= 1
  uint32_t chunk_elements = 1;  // of every chunk but the last, which may be shorter

  uint32_t chunks() const { return static_cast<uint32_t>((count + chunk_elements - 1) / chunk_elements); }
  uint64_t First(uint32_t chunk) const { return static_cast<uint64_t>(chunk) * chunk_elements; }
  uint32_t Length(uint32_t chunk) const {
    return static_cast<uint32_t>(std::min<uint64_t>(chunk_elements, count - First(chunk)));
  }
  // The chunk's elements within a whole tensor. REQUIRES: chunk < chunks(), values.size() == count.
  template <typename T>
  std::span<T> Elements(std::span<T> values, uint32_t chunk) const {
    return values.subspan(First(chunk), Length(chunk));
  }
};

}  // namespace longhaul::worker
