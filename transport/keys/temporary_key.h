// A shared key for one run of programs on this machine: in memory, with no name in any directory, so that
// nothing is left of it however the programs end.
#pragma once

#include <string>

#include "longhaul/status.h"

namespace longhaul::keys {

class TemporaryKey {
 public:
  // Errors: kInternal, with the system's words.
  static Result<TemporaryKey> Make(const std::string& job);

  TemporaryKey(TemporaryKey&& other) noexcept;
  TemporaryKey& operator=(TemporaryKey&&) = delete;
  // Gone when this and the last child are.
  ~TemporaryKey();

  // For this process and the children that it starts meanwhile, which inherit the file; no other process can
  // open it by this.
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  explicit TemporaryKey(int fd) : fd_(fd) {}

  int fd_;  // -1: moved away
};

}  // namespace longhaul::keys
