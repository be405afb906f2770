// Files in memory, as a disk has them: what has not been synced may be gone when the machine stops, a file's
// bytes from its end on and a directory's changes one by one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/disk/files.h"
#include "base/random.h"

namespace longhaul::sim {

// One directory, of any path. Not thread-safe.
class MemoryFiles final : public Files {
 public:
  // The machine stops in a write, when so many bytes more are written: no call works until Restart.
  void StopAfter(uint64_t bytes) { until_stop_ = bytes; }
  // Its syncs do nothing from now on.
  void Forget() { forgets_ = true; }
  // The machine works again. process_only: what was written is there, as when only a process has died.
  void Restart(Random& chance, bool process_only);

  Result<std::unique_ptr<OutFile>> Create(const std::string& path) override;
  Result<std::unique_ptr<InFile>> Open(const std::string& path) override;
  Status MakeDirectory(const std::string&) override { return Works(); }
  Status Rename(const std::string& from, const std::string& to) override;
  Status SyncDirectory(const std::string& path) override;
  Status Remove(const std::string& path) override;
  Result<std::vector<std::string>> List(const std::string& path) override;
  Result<std::unique_ptr<FileLock>> Lock(const std::string&) override {
    return std::unique_ptr<FileLock>(std::make_unique<FileLock>());
  }

 private:
  struct File {
    std::vector<uint8_t> bytes;
    size_t synced = 0;
  };
  class Out;
  class In;
  using Names = std::map<std::string, std::shared_ptr<File>>;

  Status Works() const;

  Names names_;    // as a process sees them
  Names durable_;  // as they are after the machine has stopped, at least
  std::optional<uint64_t> until_stop_;
  bool stopped_ = false;
  bool forgets_ = false;
};

}  // namespace longhaul::sim
