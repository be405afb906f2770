#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/disk/files.h"
#include "base/files.h"

namespace longhaul {
namespace {

Status Failed(const std::string& what, const std::string& path, int error) {
  StatusCode code = StatusCode::kInternal;
  if (error == EACCES || error == EPERM || error == EROFS) code = StatusCode::kPermissionDenied;
  if (error == ENOENT || error == ENOTDIR) code = StatusCode::kNotFound;
  if (error == EEXIST || error == ENOTEMPTY) code = StatusCode::kAlreadyExists;
  if (error == ENOSPC || error == EDQUOT) code = StatusCode::kResourceExhausted;
  return {code, "cannot " + what + " " + path + ": " + std::strerror(error)};
}

class PosixOutFile final : public OutFile {
 public:
  PosixOutFile(std::string path, FileDescriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  Status Write(ByteSpan bytes) override {
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return WriteAll(fd_.get(), text).ok() ? Status() : Failed("write", path_, errno);
  }
  Status Sync() override { return ::fsync(fd_.get()) == 0 ? Status() : Failed("sync", path_, errno); }

 private:
  std::string path_;
  FileDescriptor fd_;
};

class PosixInFile final : public InFile {
 public:
  PosixInFile(std::string path, FileDescriptor fd, uint64_t size)
      : path_(std::move(path)), fd_(std::move(fd)), size_(size) {}
  uint64_t size() const override { return size_; }
  Status Read(MutableByteSpan bytes) override {
    while (!bytes.empty()) {
      const ssize_t got = ::read(fd_.get(), bytes.data(), bytes.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Failed("read", path_, errno);
      if (got == 0) return {StatusCode::kDataLoss, path_ + " ends before its size"};
      bytes = bytes.subspan(static_cast<size_t>(got));
    }
    return {};
  }
  Status Sync() override { return ::fsync(fd_.get()) == 0 ? Status() : Failed("sync", path_, errno); }

 private:
  std::string path_;
  FileDescriptor fd_;
  uint64_t size_;
};

class PosixLock final : public FileLock {
 public:
  explicit PosixLock(FileDescriptor fd) : fd_(std::move(fd)) {}

 private:
  FileDescriptor fd_;
};

class PosixFiles final : public Files {
 public:
  Result<std::unique_ptr<OutFile>> Create(const std::string& path) override {
    FileDescriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!fd.valid()) return Failed("create", path, errno);
    return std::unique_ptr<OutFile>(new PosixOutFile(path, std::move(fd)));
  }
  Result<std::unique_ptr<InFile>> Open(const std::string& path) override {
    // O_NONBLOCK: a pipe of that name is not waited for.
    FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    struct stat info {};
    if (!fd.valid() || ::fstat(fd.get(), &info) != 0) return Failed("open", path, errno);
    if (!S_ISREG(info.st_mode)) return Status(StatusCode::kDataLoss, path + " is no regular file");
    return std::unique_ptr<InFile>(new PosixInFile(path, std::move(fd), static_cast<uint64_t>(info.st_size)));
  }
  Status MakeDirectory(const std::string& path) override {
    return ::mkdir(path.c_str(), 0777) == 0 ? Status() : Failed("make the directory", path, errno);
  }
  Status Rename(const std::string& from, const std::string& to) override {
    return std::rename(from.c_str(), to.c_str()) == 0 ? Status()
                                                      : Failed("rename " + from + " to", to, errno);
  }
  Status SyncDirectory(const std::string& path) override {
    const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.valid() || ::fsync(fd.get()) != 0) return Failed("sync", path, errno);
    return {};
  }
  Status Remove(const std::string& path) override {
    return std::remove(path.c_str()) == 0 ? Status() : Failed("remove", path, errno);
  }
  Result<std::vector<std::string>> List(const std::string& path) override {
    DIR* const directory = ::opendir(path.c_str());
    if (directory == nullptr) return Failed("list", path, errno);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(directory)) names.emplace_back(entry->d_name);
    const int error = errno;
    ::closedir(directory);
    if (error != 0) return Failed("list", path, error);
    std::erase(names, ".");
    std::erase(names, "..");
    std::sort(names.begin(), names.end());
    return names;
  }
  Result<std::unique_ptr<FileLock>> Lock(const std::string& path) override {
    // Not for writing: a file system with such a file cannot be made read-only.
    FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!fd.valid()) return Failed("create", path, errno);
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return Failed("lock", path, errno);
      return Status(StatusCode::kUnavailable, "another process holds " + path);
    }
    return std::unique_ptr<FileLock>(new PosixLock(std::move(fd)));
  }
};

Status WriteNew(Files& files, const std::string& path, ByteSpan content) {
  auto file = files.Create(path);
  if (!file.ok()) return file.status();
  const Status written = (*file)->Write(content);
  return written.ok() ? (*file)->Sync() : written;
}

}  // namespace

Status ReplaceFile(Files& files, const std::string& path, ByteSpan content) {
  const std::string part = path + ".part";
  (void)files.Remove(part);  // that a process has left half-written
  Status done = WriteNew(files, part, content);
  if (done.ok()) done = files.Rename(part, path);
  if (done.ok()) return files.SyncDirectory(path.substr(0, path.rfind('/')));
  (void)files.Remove(part);  // its space is wanted
  return done;
}

Files& SystemFiles() {
  static PosixFiles files;
  return files;
}

}  // namespace longhaul
