#include "base/files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace longhaul {

Status WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return Status(StatusCode::kInternal, std::strerror(errno));
    text.remove_prefix(static_cast<size_t>(written));
  }
  return Status::Ok();
}

namespace {

// Where the content of a result goes first.
struct Target {
  explicit Target(const std::string& path) {
    struct stat info {};
    replace = ::lstat(path.c_str(), &info) == 0 ? S_ISREG(info.st_mode) : errno == ENOENT;
    name = replace ? path + ".part" : path;
  }
  // A pipe that no process has opened for reading is an error, not waited for.
  FileDescriptor Open(bool truncate) const {
    const int how = (truncate ? O_TRUNC : 0) | (replace ? O_NOFOLLOW : 0);
    FileDescriptor file(
        ::open(name.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | how, 0666));
    if (file.valid()) ::fcntl(file.get(), F_SETFL, 0);
    return file;
  }

  bool replace = false;  // a regular file, by another one
  std::string name;
};

Status CannotWrite(const std::string& path, int error) {
  const bool denied = error == EACCES || error == EPERM || error == EROFS;
  return Status(denied ? StatusCode::kPermissionDenied : StatusCode::kInternal,
                "cannot write " + path + ": " + std::strerror(error));
}

}  // namespace

Status WriteFileAtomically(const std::string& path, std::string_view text) {
  const Target target(path);
  const auto failed = [&](int error) {
    if (target.replace) ::unlink(target.name.c_str());
    return CannotWrite(path, error);
  };
  FileDescriptor file = target.Open(true);
  if (!file.valid() || !WriteAll(file.get(), text).ok()) return failed(errno);
  if (::close(file.Release()) != 0) return failed(errno);
  if (target.replace && std::rename(target.name.c_str(), path.c_str()) != 0) return failed(errno);
  return Status::Ok();
}

Status PrepareResultFile(const std::string& path) {
  if (path.empty()) return Status::Ok();
  const Target target(path);
  if (!target.Open(false).valid()) return CannotWrite(path, errno);
  if (!target.replace) return Status::Ok();
  if (::unlink(target.name.c_str()) != 0) return CannotWrite(path, errno);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return CannotWrite(path, errno);
  return Status::Ok();
}

}  // namespace longhaul
