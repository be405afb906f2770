#include "transport/keys/key_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/files.h"
#include "transport/crypto/credentials.h"
#include "transport/crypto/openssl_memory.h"

namespace longhaul::keys {
namespace {

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

// A key that is lost with the next power cut locks every member out.
Status WriteDurably(int fd, std::string_view text) {
  if (Status s = WriteAll(fd, text); !s.ok()) return s;
  return ::fsync(fd) == 0 ? Status::Ok() : Status(StatusCode::kInternal, Words(errno));
}

}  // namespace

Result<crypto::SecretBytes> ReadKeyFile(const std::string& path) {
  // Not blocking: a pipe in its place must not stop the program for ever.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!file.valid()) {
    const StatusCode code = errno == ENOENT ? StatusCode::kNotFound : StatusCode::kInternal;
    return Status(code, "cannot read key file " + path + ": " + Words(errno));
  }
  struct stat info {};
  if (::fstat(file.get(), &info) != 0)
    return Status(StatusCode::kInternal, "cannot read key file " + path + ": " + Words(errno));
  if (Status fine = CheckOwnerAndMode(path, info); !fine.ok()) return fine;
  crypto::SecretBytes secret(static_cast<size_t>(info.st_size));
  size_t size = 0;
  while (size < secret.size()) {
    const ssize_t got = ::read(file.get(), secret.span().data() + size, secret.size() - size);
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
  const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) {
    if (errno == EEXIST) {
      return Status(StatusCode::kAlreadyExists,
                    path + " is there already; keys are not overwritten: remove it or choose another name");
    }
    const StatusCode code = errno == ENOENT ? StatusCode::kNotFound : StatusCode::kInternal;
    return Status(code, "cannot write " + path + ": " + Words(errno));
  }
  // Whatever the umask: readable by its owner alone.
  Status written = ::fchmod(file.get(), 0600) == 0 ? WriteDurably(file.get(), text)
                                                   : Status(StatusCode::kInternal, Words(errno));
  if (written.ok()) return written;
  ::unlink(path.c_str());
  return Status(written.code(), "cannot write " + path + ": " + written.message());
}

namespace {

// Empty where there is none, as in most containers: their host names differ.
std::string MachineId() {
  std::ifstream in("/etc/machine-id");
  std::string id;
  in >> id;
  return id;
}

std::string HostName() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : std::string();
}

}  // namespace

std::string ServerName(const Address& listen) {
  return MachineId() + '/' + HostName() + '/' + listen.ToString();
}

// One byte, not none: for a file both are less than the kernel writes at all, but the limit of a program that
// dumps are piped to is only looked at when it is exactly 1 (Linux, fs/coredump.c).
void ForbidCoreDumps() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_CORE, &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(1, limit.rlim_max);
  (void)::setrlimit(RLIMIT_CORE, &limit);
}

bool WipeFreedKeys() { return crypto::WipeOpenSslMemory(); }

}  // namespace longhaul::keys
