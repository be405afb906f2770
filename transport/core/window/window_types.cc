#include "transport/core/window/window_types.h"

namespace longhaul::transport {

bool ChunkBitmap::Set(uint32_t i) {
  if (i >= bits_ || Test(i)) return false;
  bytes_[i / 8] = static_cast<uint8_t>(bytes_[i / 8] | 1u << (i % 8));
  ++count_;
  return true;
}

}  // namespace longhaul::transport
