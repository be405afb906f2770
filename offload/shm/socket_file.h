// The file that a daemon listens on: a Unix socket that keeps messages apart, of its user alone (0600). A
// file that a killed daemon has left is replaced, one that a live daemon listens on is not; the file goes
// with the daemon.
//
// When not: for other users' ranks; permissions are all that keeps strangers out.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/files.h"
#include "longhaul/status.h"

namespace longhaul::offload {

class SocketFile {
 public:
  // Errors: kInvalidArgument (the path is empty or too long for a socket), kAlreadyExists (a live daemon, or
  // a file that is no socket), kNotFound, kPermissionDenied, kUnavailable (the folder is locked for long).
  static Result<SocketFile> Listen(const std::string& path);
  SocketFile(SocketFile&&) = default;
  SocketFile& operator=(SocketFile&&) = delete;
  // Removes the file, if it is still this one.
  ~SocketFile();

  int fd() const { return fd_.get(); }
  // A rank's end of it. Errors: kInvalidArgument, kUnavailable (no daemon listens there), kPermissionDenied.
  static Result<FileDescriptor> Connect(const std::string& path);

 private:
  SocketFile(std::string path, FileDescriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  FileDescriptor fd_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace longhaul::offload
