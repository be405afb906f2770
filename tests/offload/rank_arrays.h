// What a test has of a rank: two arrays that are registered, and its completions.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "longhaul/offload.h"

namespace longhaul::offload {

// The next completion, waited for on the descriptor; fails after 20 s.
Completion NextOf(Device& device);

// Two arrays of one rank in memory of Register.
struct RankArrays {
  RankArrays(Device& of, size_t elements, int32_t value);
  WorkRequest Request(uint64_t wr_id, uint32_t mid = 0) const;
  Status Post(uint64_t wr_id, uint32_t mid = 0) {
    const WorkRequest request = Request(wr_id, mid);
    return device->Post({&request, 1});
  }

  Device* device;
  std::vector<int32_t> send;
  std::vector<int32_t> receive;
  uint32_t send_key = 0;
  uint32_t receive_key = 0;
};

}  // namespace longhaul::offload
