// The round log on a disk: every tensor's state after every round of the running job, beside the checkpoints
// (decision 0028).
//
//   DIR/rounds-000000000007.log   records, one after the other; a file that has grown is left for the next
//
//   record   "LHROUND1", 8 bytes header length, 8 bytes data length (little-endian), header (JSON), data, CRC-32C
//   header   {"kind": "job", ...}      of which job what follows is
//            {"kind": "tensor", ...}   values and the optimizer's arrays follow as data
//            {"kind": "over"}          that job is over
//
// What counts is each tensor's last record: a state, no difference, so nothing is replayed. A file is read up
// to its first record that is not whole: a server that dies in the middle of a write has told no worker of
// it. What is read is synced first: where only the process has died, it may be in memory alone, and workers
// hear of it. Files in which no tensor has its last record are removed. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/disk/files.h"
#include "longhaul/status.h"
#include "server/tensor/job_image.h"

namespace longhaul::server::store {

class RedoLog {
 public:
  using Image = std::shared_ptr<const TensorImage>;
  // What must be the same when the job goes on.
  struct About {
    std::string job;
    std::string settings = "{}";  // one JSON object
    uint32_t world_size = 0;
  };
  struct Loaded {
    About about;
    ResumedJob run;
    bool over = false;
    std::vector<TensorImage> tensors = {};
    std::vector<std::string> cut = {};  // what was not read, in words
  };

  // Reads what is in the directory, which is there and locked by the caller. Errors: a file call's.
  static Result<RedoLog> Open(Files* files, const std::string& directory);
  // Once: what was there; none: no job.
  std::optional<Loaded> TakeLoaded() { return std::exchange(loaded_, std::nullopt); }

  // One of: a job begins, a state, the job is over.
  struct Entry {
    std::optional<std::pair<ResumedJob, bool>> begin = {};  // and whether it goes on
    Image image = nullptr;
  };
  // In order; the states between two other entries go to the disk together. done: what became of those, and
  // of each other entry (without images), as it happens.
  void Write(const About& about, std::vector<Entry> entries,
             const std::function<void(const Status&, std::vector<Image>)>& done);

  // What follows is of this job. goes_on: as what was loaded.
  Status Begin(const About& about, const ResumedJob& run, bool goes_on);
  // Returns when all of them are on the disk. After an error what was there before is there still.
  // REQUIRES: Begin was Ok.
  Status Append(std::span<const Image> images);
  // The job is over.
  Status End();

  // A file is left for the next one when it is longer than this, and than twice the states.
  static constexpr uint64_t kFileBytes = uint64_t{64} << 20;

 private:
  struct Place {
    uint64_t file = 0;
    uint64_t bytes = 0;
  };
  struct Reader;

  RedoLog(Files* files, std::string directory) : files_(files), directory_(std::move(directory)) {}
  std::string PathOf(uint64_t file) const;
  Status Read(uint64_t file);
  Status NextFile();
  Status WriteRecord(const std::string& header, const TensorImage* image);
  void RemoveUnused();

  Files* files_;
  std::string directory_;
  std::optional<Loaded> loaded_;
  std::map<std::string, Place> places_;  // of each tensor's last record
  std::vector<uint64_t> old_;            // files before the one that is written
  uint64_t file_ = 0;                    // the one that is written, or was last
  uint64_t written_ = 0;                 // bytes of it
  std::unique_ptr<OutFile> out_;         // null: the next record begins a file
  std::string job_header_;
  bool has_round_ = true;  // of the job that has begun: those before it are not needed any more
};

}  // namespace longhaul::server::store
