// The processes of each rank, by their sessions (control.Join): the one that has the rank, or had it last,
// and those that others have followed. A process that another one has followed may not have the rank again.
// Some of its pushes have counted; the server knows which for the last process only, so that an earlier one
// would push them again. Fences begin with the job: before, nothing has counted.
//
// Of each rank the last kMost are remembered; a worker without a session is never refused. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "longhaul/status.h"
#include "server/tensor/job_image.h"

namespace longhaul::server {

// Of the tensors of one job: a rank's last session is the one that no tensor says was replaced.
std::vector<RankSessions> SessionsOf(const std::vector<TensorImage>& tensors, uint32_t ranks);

class Fences {
 public:
  static constexpr size_t kMost = 8;

  explicit Fences(uint32_t ranks) : ranks_(ranks) {}

  // kAlreadyExists: another process has followed this one.
  Status MayJoin(uint32_t rank, uint64_t session) const;
  // It has the rank from now on. REQUIRES: MayJoin.
  void OnJoined(uint32_t rank, uint64_t session);
  // A process that has had the rank is known: the job has begun, here or at an earlier server.
  bool IsKnown(uint32_t rank) const { return ranks_[rank].last != 0; }
  const std::vector<uint64_t>& replaced(uint32_t rank) const { return ranks_[rank].replaced; }

  // As an earlier server has left them. REQUIRES: of all ranks, or none.
  void Restore(std::vector<RankSessions> sessions);
  // Another job.
  void Reset() { ranks_.assign(ranks_.size(), RankSessions()); }

 private:
  static void Trim(RankSessions& rank);

  std::vector<RankSessions> ranks_;
};

}  // namespace longhaul::server
