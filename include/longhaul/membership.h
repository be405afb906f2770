// Which workers are in a job, as its server says, and which part of the data that gives each of them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace longhaul {

struct Membership {
  // Grows with every change, and is the same at all workers for the same ranks. It goes on growing when the
  // server is started again, unless within the same second or with a clock that was set back. 0: nothing is
  // known yet: the job has not started, or the server is an older version.
  uint64_t epoch = 0;
  // Those that are in, ascending; this worker's is one of them. Empty with epoch 0.
  std::vector<uint32_t> ranks = {};
  // The data in shard_count equal parts: this worker's is number shard_index. 0 of 1 with epoch 0.
  uint32_t shard_index = 0;
  uint32_t shard_count = 1;

  bool operator==(const Membership&) const = default;
};

using MembershipCallback = std::function<void(const Membership&)>;

}  // namespace longhaul
