#include "transport/keys/key_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "transport/crypto/credentials.h"

namespace longhaul::keys {
namespace {

// Closed when it goes.
struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

std::string Words(int error) { return std::strerror(error); }

Status CheckOwnerAndMode(const std::string& path, const struct stat& info) {
  if (!S_ISREG(info.st_mode)) {
    return Status(StatusCode::kInvalidArgument, "key file " + path + " is not a regular file");
  }
  if (info.st_uid != ::geteuid() && info.st_uid != 0) {
    return Status(StatusCode::kPermissionDenied, "key file " + path + " belongs to another user (" +
                                                     std::to_string(info.st_uid) +
                                                     "), who could read or replace it");
  }
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(info.st_mode & 07777));
    return Status(StatusCode::kPermissionDenied,
                  "key file " + path + " has mode " + mode + ": others may use it. Say: chmod 600 " + path);
  }
  if (info.st_size == 0) return Status(StatusCode::kInvalidArgument, "key file " + path + " is empty");
  if (static_cast<uint64_t>(info.st_size) > crypto::kMaxKeyFileBytes) {
    return Status(StatusCode::kInvalidArgument, "key file " + path + " is too long to be one");
  }
  return {};
}

Status WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return Status(StatusCode::kInternal, Words(errno));
    text.remove_prefix(static_cast<size_t>(written));
  }
  // A key that is lost with the next power cut locks everybody out.
  if (::fsync(fd) != 0) return Status(StatusCode::kInternal, Words(errno));
  return {};
}

}  // namespace

Result<crypto::SecretBytes> ReadKeyFile(const std::string& path) {
  // Not blocking: a pipe in its place must not stop the program for ever.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)};
  if (file.fd < 0) {
    const StatusCode code = errno == ENOENT ? StatusCode::kNotFound : StatusCode::kInternal;
    return Status(code, "cannot read key file " + path + ": " + Words(errno));
  }
  struct stat info {};
  if (::fstat(file.fd, &info) != 0)
    return Status(StatusCode::kInternal, "cannot read key file " + path + ": " + Words(errno));
  if (Status fine = CheckOwnerAndMode(path, info); !fine.ok()) return fine;
  crypto::SecretBytes secret(static_cast<size_t>(info.st_size));
  size_t size = 0;
  while (size < secret.size()) {
    const ssize_t got = ::read(file.fd, secret.span().data() + size, secret.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    size += static_cast<size_t>(got);
  }
  if (size != secret.size()) {
    return Status(StatusCode::kInternal, "cannot read key file " + path + ": it changed meanwhile");
  }
  return secret;
}

Status WriteKeyFile(const std::string& path, std::string_view text) {
  const Descriptor file{::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600)};
  if (file.fd < 0) {
    if (errno == EEXIST) {
      return Status(StatusCode::kAlreadyExists,
                    path + " is there already; keys are not overwritten: remove it or choose another name");
    }
    const StatusCode code = errno == ENOENT ? StatusCode::kNotFound : StatusCode::kInternal;
    return Status(code, "cannot write " + path + ": " + Words(errno));
  }
  // Whatever the umask says about owners: readable by its owner, and by nobody else.
  Status written =
      ::fchmod(file.fd, 0600) == 0 ? WriteAll(file.fd, text) : Status(StatusCode::kInternal, Words(errno));
  if (written.ok()) return written;
  ::unlink(path.c_str());
  return Status(written.code(), "cannot write " + path + ": " + written.message());
}

}  // namespace longhaul::keys
