#include "offload/shm/socket_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

namespace longhaul::offload {
namespace {

// A rank's calls end after it, whatever the daemon does.
constexpr timeval kPatience{.tv_sec = 5, .tv_usec = 0};
constexpr int kBacklog = 128;

std::optional<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) return std::nullopt;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Status BadPath() { return Status(StatusCode::kInvalidArgument, "offload: a socket's path has 1..107 bytes"); }

Status Failed(const std::string& path, int error) {
  StatusCode code = StatusCode::kInternal;
  if (error == ENOENT || error == ENOTDIR) code = StatusCode::kNotFound;
  if (error == EACCES || error == EPERM || error == EROFS) code = StatusCode::kPermissionDenied;
  return Status(code, "offload: " + path + ": " + std::strerror(error));
}

FileDescriptor NewSocket() { return FileDescriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); }

bool Connects(int fd, const sockaddr_un& address) {
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof kPatience);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
  return connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

// Two daemons that start at once do not take each other's file for one that was left behind.
FileDescriptor LockFolder(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  FileDescriptor lock(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int tries = 0; lock.valid() && flock(lock.get(), LOCK_EX | LOCK_NB) != 0; ++tries) {
    if (tries == 100) return {};
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return lock;
}

Status RemoveStale(const std::string& path, const sockaddr_un& address) {
  struct stat file;
  if (lstat(path.c_str(), &file) != 0) return errno == ENOENT ? Status::Ok() : Failed(path, errno);
  if (!S_ISSOCK(file.st_mode)) {
    return Status(StatusCode::kAlreadyExists, "offload: " + path + " is no socket, and stays");
  }
  const FileDescriptor probe = NewSocket();
  if (Connects(probe.get(), address) || errno != ECONNREFUSED) {
    return Status(StatusCode::kAlreadyExists, "offload: another daemon listens on " + path);
  }
  return unlink(path.c_str()) == 0 ? Status::Ok() : Failed(path, errno);
}

}  // namespace

Result<SocketFile> SocketFile::Listen(const std::string& path) {
  const auto address = AddressOf(path);
  if (!address) return BadPath();
  const FileDescriptor lock = LockFolder(path);
  if (!lock.valid())
    return errno == EWOULDBLOCK
               ? Status(StatusCode::kUnavailable, "offload: the folder of " + path + " is locked")
               : Failed(path, errno);
  if (Status status = RemoveStale(path, *address); !status.ok()) return status;
  SocketFile file(path, NewSocket());
  // Before bind: the file never has another mode.
  if (fchmod(file.fd(), 0600) != 0) return Failed(path, errno);
  if (bind(file.fd(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0) {
    return Failed(path, errno);
  }
  struct stat made;
  if (lstat(path.c_str(), &made) != 0) return Failed(path, errno);
  file.device_ = made.st_dev;
  file.inode_ = made.st_ino;
  const bool ready = fcntl(file.fd(), F_SETFL, O_NONBLOCK) == 0 && listen(file.fd(), kBacklog) == 0;
  if (!ready) return Failed(path, errno);
  return file;
}

SocketFile::~SocketFile() {
  struct stat file;
  if (!fd_.valid() || inode_ == 0 || lstat(path_.c_str(), &file) != 0) return;
  if (file.st_dev == device_ && file.st_ino == inode_) unlink(path_.c_str());
}

Result<FileDescriptor> SocketFile::Connect(const std::string& path) {
  const auto address = AddressOf(path);
  if (!address) return BadPath();
  FileDescriptor fd = NewSocket();
  if (Connects(fd.get(), *address)) return fd;
  if (errno == EACCES || errno == EPERM) return Failed(path, errno);
  return Status(StatusCode::kUnavailable, "offload: no daemon listens on " + path);
}

}  // namespace longhaul::offload
