// What of a job outlives its server: for every tensor the values and the optimizer's state after one of its
// rounds. An image borrows both: what it holds is not written again (server/tensor/parameter_store.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/zeroed_array.h"
#include "codec/policy/optimizer.h"
#include "longhaul/units.h"

namespace longhaul::server {

// The last round in which a push of a worker's session counted.
struct Counted {
  uint64_t session = 0;  // 0: none has
  uint64_t round = 0;
  uint64_t clock = 0;                   // its pushes that have counted, that one included
  std::vector<uint8_t> chunks = {};     // a bit for each that counted, LSB first; empty: all of them
  std::vector<uint64_t> replaced = {};  // sessions that had the rank before, the oldest first
  bool operator==(const Counted&) const = default;
  // Of this process, which says a session.
  bool IsOf(uint64_t process) const { return process != 0 && session == process; }
};

struct TensorImage {
  std::string name;
  uint64_t count = 0;
  std::string optimizer = "aggregate";  // as text: a plug-in's may be of another process
  uint64_t rounds = 0;                  // that made the values, those of earlier jobs included
  uint64_t round = 0;                   // of them, those of the job that goes on; 0 where another one begins
  uint32_t shift_epoch = 0;
  std::vector<Counted> counted = {};  // by rank; in the round log only
  std::shared_ptr<const ZeroedArray<float>> values = {};
  std::vector<codec::Optimizer::State> state = {};  // of the optimizer; `count` values each
};

struct JobImage {
  uint64_t rounds = 0;  // the most of any tensor
  std::vector<TensorImage> tensors;
};

// The processes that have had a rank (server/member/fences.h).
struct RankSessions {
  uint64_t last = 0;                    // 0: not known
  std::vector<uint64_t> replaced = {};  // by others, the oldest first
  bool operator==(const RankSessions&) const = default;
};

struct KeeperStats {
  uint64_t written = 0;
  uint64_t failed = 0;
  uint64_t skipped = 0;
  uint64_t bytes = 0;      // of the last one
  uint64_t rounds = 0;     // that the last one is after
  Duration last_write{0};  // that it took
  uint64_t log_records = 0;
  uint64_t log_failed = 0;
};

// The job that was running when an earlier server died, and now goes on (decision 0028).
struct ResumedJob {
  uint64_t number = 0;  // control.Welcome
  uint16_t symbol_bytes = 0;
  std::vector<RankSessions> sessions = {};  // by rank; empty: not known
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

  // --- The round log. The default has none. ---
  virtual bool Logs() const { return false; }
  // Of the first job only; none: a new one begins.
  virtual std::optional<ResumedJob> resumed() const { return std::nullopt; }
  // Returns its number, as Log; 0: nothing is to be written.
  virtual uint64_t OnJobStart(const ResumedJob&) { return 0; }
  // Appends a tensor's state after a round. The image is given back in the calling thread. Returns its
  // number, which counts from 1.
  virtual uint64_t Log(std::shared_ptr<const TensorImage> image) {
    image.reset();
    return 0;
  }
  // Everything up to this number is on the disk, or will never be (stats().log_failed).
  virtual uint64_t logged() const { return 0; }
};

}  // namespace longhaul::server
