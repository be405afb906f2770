// A shared key for one run of programs on this machine: in a directory of its own that nobody else may enter, gone with
// the object.
#pragma once

#include <string>

#include "longhaul/status.h"

namespace longhaul::cli {

class TemporaryKey {
 public:
  // Errors: kInternal, with the system's words (no room or no right in the directory for temporary files).
  static Result<TemporaryKey> Make(const std::string& job);

  TemporaryKey(TemporaryKey&& other) noexcept;
  TemporaryKey& operator=(TemporaryKey&&) = delete;
  ~TemporaryKey();

  std::string path() const { return directory_ + "/job.key"; }

 private:
  explicit TemporaryKey(std::string directory) : directory_(std::move(directory)) {}

  std::string directory_;  // empty: moved away
};

}  // namespace longhaul::cli
