// Files as programs write them, and the owner of a file descriptor. The only part of base that calls the
// operating system.
#pragma once

#include <unistd.h>

#include <string>
#include <string_view>
#include <utility>

#include "longhaul/status.h"

namespace longhaul {

// Owns a file descriptor and closes it. Move-only.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.Release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    Reset(other.Release());
    return *this;
  }
  ~FileDescriptor() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

// Writes all of `text`. kInternal with the system's words.
Status WriteAll(int fd, std::string_view text);

// Replaces the file at `path` by one that holds `text`, through PATH.part beside it: a reader sees the old or
// the new content, never half of it, and a failure leaves the old one. A device, pipe or link is written in
// place and stays what it is; a pipe without a reader is an error. Errors: kPermissionDenied, kInternal,
// naming the path.
Status WriteFileAtomically(const std::string& path, std::string_view text);

// Before the work that `path` is to tell of: removes the regular file that an earlier run has left there, and
// finds out whether it can be written, by PATH.part. A device, pipe or link stays. An empty path: nothing.
// Errors: kPermissionDenied, kInternal, naming the path.
Status PrepareResultFile(const std::string& path);

}  // namespace longhaul
