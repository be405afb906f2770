// The file calls of what must be whole on a disk whenever the machine stops (checkpoints, logs, the state of
// a worker), behind an interface: tests make any of them fail, or cut what it writes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "longhaul/status.h"

namespace longhaul {

// Closes on destruction.
class OutFile {
 public:
  virtual ~OutFile() = default;
  // All of it.
  virtual Status Write(ByteSpan bytes) = 0;
  // Returns when it is on the disk (fsync).
  virtual Status Sync() = 0;
};

class InFile {
 public:
  virtual ~InFile() = default;
  // Of a regular file, when it was opened.
  virtual uint64_t size() const = 0;
  // The next bytes, exactly so many. kDataLoss: the file ends before.
  virtual Status Read(MutableByteSpan bytes) = 0;
  // Returns when all of it is on the disk, also what a process that has died had written.
  virtual Status Sync() = 0;
};

// Held until it is destroyed.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

// Errors name the path and say what the system says: kPermissionDenied (also of a file system that is
// mounted read-only), kNotFound, kAlreadyExists, kResourceExhausted (no space), else kInternal.
class Files {
 public:
  virtual ~Files() = default;
  // The file must not exist.
  virtual Result<std::unique_ptr<OutFile>> Create(const std::string& path) = 0;
  // A regular file; links are not followed.
  virtual Result<std::unique_ptr<InFile>> Open(const std::string& path) = 0;
  virtual Status MakeDirectory(const std::string& path) = 0;
  // `to` may be an empty directory, or a file that is replaced by a file.
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  virtual Status SyncDirectory(const std::string& path) = 0;
  // A file, or an empty directory.
  virtual Status Remove(const std::string& path) = 0;
  // Names in a directory, sorted, without "." and "..".
  virtual Result<std::vector<std::string>> List(const std::string& path) = 0;
  // kUnavailable: another process holds it.
  virtual Result<std::unique_ptr<FileLock>> Lock(const std::string& path) = 0;
};

// The operating system's; any thread.
Files& SystemFiles();

// Replaces the file, or makes it, by way of PATH.part: all of it is on the disk, and its name, when this
// returns Ok; after an error the one before is there. REQUIRES: path has a '/'.
Status ReplaceFile(Files& files, const std::string& path, ByteSpan content);

}  // namespace longhaul
