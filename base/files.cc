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

Status WriteFileAtomically(const std::string& path, std::string_view text) {
  struct stat info {};
  const bool replace = ::lstat(path.c_str(), &info) == 0 ? S_ISREG(info.st_mode) : errno == ENOENT;
  const std::string target = replace ? path + ".part" : path;
  const auto failed = [&](int error) {
    if (replace) ::unlink(target.c_str());
    const bool denied = error == EACCES || error == EPERM || error == EROFS;
    return Status(denied ? StatusCode::kPermissionDenied : StatusCode::kInternal,
                  "cannot write " + path + ": " + std::strerror(error));
  };
  FileDescriptor file(::open(target.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.valid() || !WriteAll(file.get(), text).ok()) return failed(errno);
  if (::close(file.Release()) != 0) return failed(errno);
  if (replace && std::rename(target.c_str(), path.c_str()) != 0) return failed(errno);
  return Status::Ok();
}

}  // namespace longhaul
