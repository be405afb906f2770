// In which order the tensors of a job leave, both ways: first layers first.
#pragma once

#include <algorithm>
#include <cstdint>

namespace longhaul::codec {

// Priority of a tensor's windows, lower leaves first: by the tensor's own priority (clamped to 16 bits),
// among equals those declared first. Keys are given in the order of declarations; those beyond 65,535 are
// equal.
constexpr int32_t SendOrder(int32_t priority, uint32_t key) {
  const int32_t rank = std::clamp<int32_t>(priority, INT16_MIN, INT16_MAX);
  return rank * 65'536 + static_cast<int32_t>(std::min<uint32_t>(key, UINT16_MAX));
}

}  // namespace longhaul::codec
