// Collects images of the job (server/tensor/job_image.h): every N rounds, when it is asked to, and at the
// job's end.
//
// An image of a tensor is of one round: it is taken between the end of a round and the first final chunk of
// the next one, and costs references, no copy. A job's image is begun when its first tensor has finished the
// round; the others join it as they finish theirs. So where every worker pushes every tensor once a round, it
// is of the same round of all of them. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "server/round/tensor_job.h"
#include "server/tensor/job_image.h"

namespace longhaul::server {

class ImageCollector {
 public:
  // every: rounds; 0: only what is asked for. keeper: null: nothing is collected; both must outlive this.
  ImageCollector(uint64_t every, ImageKeeper* keeper, TensorJobs* jobs)
      : every_(every), keeper_(keeper), jobs_(*jobs) {}

  // The tensor has finished a round, and the next one has written nothing yet.
  void OnRoundOver(const TensorJob& job);
  // An image is wanted whatever round it is. Tensors in the middle of a round join it when that is over.
  void Begin();
  // Tensors are missing in an image that was begun.
  bool pending() const { return missing_ > 0; }
  // The job ends: its last image, of what is not in the middle of a round. None where a tensor is, or when
  // nothing has changed since the one before.
  void Finish();

 private:
  uint64_t Rounds() const;
  void Capture(const TensorJob& job);
  void CaptureResting(uint64_t least_version);
  void KeepIfWhole();

  uint64_t every_;
  ImageKeeper* keeper_;
  TensorJobs& jobs_;
  std::shared_ptr<JobImage> image_;
  std::vector<bool> awaited_;  // by key
  size_t missing_ = 0;         // of them
  uint64_t due_ = 0;           // the version that an image was last due at
  uint64_t kept_ = 0;          // Rounds() when the last one was kept
};

}  // namespace longhaul::server
