// Requests and completions as they stand in the rings: fixed size, no padding, no pointers.
//
// When not: between machines, whose byte order may differ (offload/engine/wire.h is for packets).
#pragma once

#include <cstdint>
#include <optional>

#include "longhaul/offload.h"

namespace longhaul::offload {

struct WireRequest {
  uint64_t token = 0;  // the rank's, comes back in the completion
  uint8_t opcode = 0;
  uint8_t op = 0;
  uint8_t type = 0;
  uint8_t flags = 0;
  uint8_t root_node = 0;
  uint8_t root_rank = 0;
  uint16_t jid = 0;
  uint32_t mid = 0;
  uint32_t generation = 0;
  uint32_t first_seg = 0;
  uint32_t seg_count = 0;
  uint64_t nodes = 0;  // of kConfig: the job's
  uint64_t ranks = 0;
  uint64_t length = 0;
  uint64_t send_offset = 0;
  uint64_t receive_offset = 0;
  uint32_t send_key = 0;
  uint32_t receive_key = 0;
  int64_t deadline_ns = 0;  // of kConfig: the job's
  int64_t skip_after_ns = 0;
  uint8_t job_route = 0;
  uint8_t job_root_node = 0;
  uint8_t job_policy = 0;
  uint8_t reserved[29] = {};
};
static_assert(sizeof(WireRequest) == 128);

struct WireCompletion {
  uint64_t token = 0;
  uint8_t status = 0;
  uint8_t reason = 0;
  uint8_t opcode = 0;
  uint8_t source_node = 0;
  uint16_t jid = 0;
  uint8_t source_rank = 0;
  uint8_t reserved = 0;
  uint32_t mid = 0;
  uint32_t segs_done = 0;
  uint32_t segs_total = 0;
  uint32_t reserved2 = 0;
  uint64_t missing_ranks = 0;
  uint64_t missing_nodes = 0;
  uint64_t bytes = 0;
  int64_t elapsed_ns = 0;
};
static_assert(sizeof(WireCompletion) == 64);

// REQUIRES: CheckRequest(request).ok() (offload/engine/collective.h).
WireRequest Encode(const WorkRequest& request, uint64_t token);

// A request whose configuration, if it has one, is beside it.
struct DecodedRequest {
  WorkRequest request;
  JobConfig config;
};
// False: no rank's library writes such a request.
bool Decode(const WireRequest& wire, DecodedRequest* out);

WireCompletion Encode(const Completion& completion);
// The caller puts its own wr_id in the token's place.
Completion Decode(const WireCompletion& wire);

}  // namespace longhaul::offload
