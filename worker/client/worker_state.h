// What a worker keeps of itself on its own disk (ConnectOptions::state_dir, decision 0032):
//
//   DIR/rank-3.state       a blob of the user's; rank-3.state.old is that of the save before
//   DIR/rank-3.residuals   what is owed of each tensor, until the next push
//
// A residual that was saved is repaid once or not at all: its file is removed before the first push after the
// save leaves, since that push may carry it and count. The removal may not have reached the disk when the
// machine stops, so the file is good for one job and until the machine starts again.
//
// Each file ends in its CRC-32C; what is not whole is not used, and the log says so. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/disk/files.h"
#include "longhaul/status.h"

namespace longhaul::internal {

class WorkerState {
 public:
  struct Options {
    std::string directory;
    uint32_t rank = 0;
    // Of the server's jobs, asked at each save; 0: not known, residuals are not kept.
    std::function<uint64_t()> job = [] { return uint64_t{0}; };
    std::function<void(const std::string&)> warn;
    Files* files = &SystemFiles();
    std::string boot_id = "/proc/sys/kernel/random/boot_id";  // 36 bytes that the machine's start changes
  };
  struct Declared {
    std::string name;
    uint64_t count = 0;
    // The residual from element `first` on, at most so much of it; none: nothing is owed of the tensor.
    std::function<Result<std::vector<float>>(uint64_t first, size_t most)> owed;
    // Adds to it; waits for nothing.
    std::function<void(uint64_t first, std::vector<float> values)> owe;
  };
  static constexpr size_t kMostBlobBytes = size_t{1} << 30;
  static constexpr size_t kRun = 64 * 1024;  // elements at a time

  // Reads what is there.
  explicit WorkerState(Options options);
  // Of the last save that is whole, when this was made; empty: none.
  const std::string& blob() const { return blob_; }
  // It owes what it owed, if that is known; one that was declared before: nothing. REQUIRES of one that was
  // not: no push of it has begun.
  void OnDeclared(const Declared& tensor);
  // Around each push.
  void BeginPush();
  void EndPush() { --pending_; }
  // As Client::SaveState.
  Status Save(ByteSpan blob);

 private:
  struct Run {  // of a tensor's residual
    std::string name;
    uint64_t count = 0;
    uint64_t first = 0;
    std::vector<float> values;
  };

  std::string Path(const char* end) const;
  // What is in a file that is whole; else none, and the log has why, unless it is not there.
  std::optional<std::string> Load(const char* end) const;
  void TakeResiduals(ByteSpan content);
  static void Append(const Run& run, std::string* content);

  const Options options_;
  std::string boot_;  // empty: not known
  std::string blob_;
  std::atomic<uint64_t> pending_{0};  // pushes
  std::mutex mutex_;                  // guards the rest; a push that begins during a save waits for the disk
  uint64_t pushes_ = 0;               // begun
  bool kept_ = true;                  // there may be a file with residuals
  std::vector<Declared> declared_;
  std::vector<Run> loaded_;  // of tensors that are not declared yet
};

}  // namespace longhaul::internal
