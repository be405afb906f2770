// Checkpoints on a disk: a directory with one directory for each of them,
//
//   DIR/checkpoint-000000000042/parameters.safetensors
//                               optimizer.safetensors    "exp_avg.w": the state of tensor "w"
//                               manifest.json            what is in them, and the hashes of all three
//   DIR/lock                                             held by the server that writes
//
// A checkpoint is written as checkpoint-....part: every file, then the manifest, each synced, then the
// directory, which is renamed and whose parent is synced. So what has a checkpoint's name is whole, whenever
// the machine stops; what was damaged since is found by sizes and hashes, and refused.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/disk/files.h"
#include "longhaul/status.h"
#include "server/store/manifest.h"
#include "server/tensor/job_image.h"

namespace longhaul::server::store {

// That a directory has; it may be damaged.
struct CheckpointPath {
  uint64_t generation = 0;
  std::string path;
};

// Newest first.
Result<std::vector<CheckpointPath>> ListCheckpoints(Files& files, const std::string& directory);

// Only what it says of itself.
Result<Manifest> ReadManifest(Files& files, const std::string& path);

// Reads all of it and compares sizes, hashes, names and shapes; takes memory for headers only. kDataLoss,
// kVersionMismatch, or a file call's error, naming the file.
Result<Manifest> VerifyCheckpoint(Files& files, const std::string& path);

struct LoadedCheckpoint {
  std::string path;
  Manifest manifest;
  JobImage image;
};

// As VerifyCheckpoint, and keeps the values. kResourceExhausted: there is no memory for them.
Result<LoadedCheckpoint> LoadCheckpoint(Files& files, const std::string& path);

struct NewestCheckpoint {
  std::optional<LoadedCheckpoint> loaded;
  std::vector<std::pair<std::string, Status>> refused;  // newer ones, by path
};

// The newest that is good. None in an empty directory, or one that is not there; error: it cannot be read.
Result<NewestCheckpoint> LoadNewestCheckpoint(Files& files, const std::string& directory);

// Writes the parameters, and with `optimizer` also its state, as one new safetensors file. Errors: as
// LoadCheckpoint; kAlreadyExists: the file is there.
Status ExportCheckpoint(Files& files, const std::string& path, const std::string& out, bool optimizer);

class CheckpointWriter {
 public:
  struct Description {
    std::string job;
    std::string settings = "{}";  // one JSON object
    std::string written;          // date and time
  };

  // Makes the directory where there is none, locks it, and removes what an earlier writer has left half-done.
  // keep: so many of the newest stay, >= 1. Errors: kUnavailable (another server writes there),
  // kInvalidArgument, or a file call's.
  static Result<CheckpointWriter> Open(Files* files, const std::string& directory, size_t keep);

  // Returns when it is on the disk under its name; then older ones are removed. After an error all is as
  // before, but for a part that the next one removes.
  Result<Manifest> Write(const JobImage& image, const Description& about);

 private:
  CheckpointWriter(Files* files, std::string directory, size_t keep, std::unique_ptr<FileLock> lock,
                   uint64_t next)
      : files_(files), directory_(std::move(directory)), keep_(keep), lock_(std::move(lock)), next_(next) {}

  Status WriteFiles(const std::string& part, const JobImage& image, Manifest* manifest);
  void RemoveOld();

  Files* files_;
  std::string directory_;
  size_t keep_;
  std::unique_ptr<FileLock> lock_;
  uint64_t next_;  // generation
};

}  // namespace longhaul::server::store
