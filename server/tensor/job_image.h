// What of a job outlives its server: for every tensor the values and the optimizer's state after one of its
// rounds. An image borrows both: what it holds is not written again (server/tensor/parameter_store.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/zeroed_array.h"
#include "codec/policy/optimizer.h"
#include "longhaul/units.h"

namespace longhaul::server {

struct TensorImage {
  std::string name;
  uint64_t count = 0;
  codec::OptimizerSpec optimizer = {};
  uint64_t rounds = 0;  // that made the values, those before a restart included
  uint32_t shift_epoch = 0;
  std::shared_ptr<const ZeroedArray<float>> values = {};
  std::vector<codec::Optimizer::State> state = {};  // of the optimizer; `count` values each
};

struct JobImage {
  uint64_t rounds = 0;  // the most of any tensor
  std::vector<TensorImage> tensors;
};

struct KeeperStats {
  uint64_t written = 0;
  uint64_t failed = 0;
  uint64_t skipped = 0;
  uint64_t bytes = 0;      // of the last one
  uint64_t rounds = 0;     // that the last one is after
  Duration last_write{0};  // that it took
};

// Where images of the running job go, and where the first job's values come from.
class ImageKeeper {
 public:
  virtual ~ImageKeeper() = default;
  // False: the image before is still being written, which may not hold training up.
  virtual bool Ready() const = 0;
  // Takes it; not Ready(): instead of one that waits. The image is given back in the calling thread.
  virtual void Keep(std::shared_ptr<const JobImage> image) = 0;
  // One was due, and there is none: the one before is not written yet, or a round was not over in time.
  virtual void OnSkipped() = 0;
  virtual KeeperStats stats() const = 0;
  // What an earlier server has kept of the tensor, null when there is nothing; it is given once.
  virtual const TensorImage* Find(const std::string& tensor) const = 0;
  virtual TensorImage Take(const std::string& tensor) = 0;
  // What is left of it was for this job.
  virtual void OnJobOver() = 0;
};

}  // namespace longhaul::server
