// Version of the wire format. A change of any byte on the wire changes it, docs/reference/wire_format.md, the
// golden vectors and the CHANGELOG together.
#pragma once

#include <cstdint>

namespace longhaul::wire {

inline constexpr uint16_t kVersion = 7;

}  // namespace longhaul::wire
