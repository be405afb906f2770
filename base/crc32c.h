// CRC-32C (Castagnoli), as in RFC 3720 §12.1: finds every burst of up to 32 bits and all but one in 2^32 of
// other damage. No protection against deliberate changes.
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace longhaul {

// CRC of `data` continued from `crc`, the result for what comes before it (0 for nothing). Uses the SSE 4.2
// instruction where the processor has it.
uint32_t Crc32c(ByteSpan data, uint32_t crc = 0);
// The same by tables; the reference that the fast one is tested against.
uint32_t Crc32cPortable(ByteSpan data, uint32_t crc = 0);

}  // namespace longhaul
