// Which bytes of a rank's regions a request reads and writes, for memory that is not shared with the daemon:
// those are copied before the request and after its completion, and no others.
#pragma once

#include <cstdint>

#include "longhaul/offload.h"

namespace longhaul::offload {

struct ByteRange {
  uint64_t offset = 0;  // in the region
  uint64_t bytes = 0;
};

struct CopyRanges {
  ByteRange send;
  ByteRange receive;
};

// Of what the daemon will refuse they may be anything: apply only what lies within the region. Errors:
// kInvalidArgument (a share of a reduce-scatter whose ranks and nodes the request leaves to the job).
Result<CopyRanges> RangesOf(const WorkRequest& request, uint32_t seg_bytes, uint8_t node, uint8_t rank);

}  // namespace longhaul::offload
