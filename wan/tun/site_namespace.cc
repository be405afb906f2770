#include "wan/tun/site_namespace.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "wan/tun/os_error.h"

namespace longhaul::wan {
namespace {

namespace fs = std::filesystem;

Status MountNewNamespace(const std::string& path) {
  if (unshare(CLONE_NEWNET) != 0)
    return OsError("creating a network namespace (unshare CLONE_NEWNET)", errno);
  if (mount("/proc/thread-self/ns/net", path.c_str(), "none", MS_BIND, nullptr) != 0) {
    return OsError("mounting the network namespace at " + path, errno);
  }
  return Status::Ok();
}

Status OnThread(const std::function<Status()>& work) {
  Status status;
  std::thread([&] { status = work(); }).join();
  return status;
}

void Signal(const std::vector<pid_t>& processes, int signal) {
  for (const pid_t pid : processes) kill(pid, signal);
}

void EndProcessesIn(const std::string& path) {
  constexpr timespec kPause{0, 10'000'000};
  std::vector<pid_t> left = ProcessesIn(path);
  if (left.empty()) return;
  Signal(left, SIGTERM);
  for (int i = 0; i < 50 && !left.empty(); ++i) {
    nanosleep(&kPause, nullptr);
    left = ProcessesIn(path);
  }
  Signal(left, SIGKILL);
}

}  // namespace

Status PrepareNetnsDirectory(const std::string& directory) {
  if (mkdir(directory.c_str(), 0755) != 0 && errno != EEXIST) return OsError("making " + directory, errno);
  const char* path = directory.c_str();
  if (mount("", path, "none", MS_SHARED | MS_REC, nullptr) == 0) return Status::Ok();
  if (errno != EINVAL) return OsError("sharing the mounts under " + directory, errno);
  if (mount(path, path, "none", MS_BIND | MS_REC, nullptr) != 0) {
    return OsError("making a mount point of " + directory, errno);
  }
  if (mount("", path, "none", MS_SHARED | MS_REC, nullptr) != 0) {
    return OsError("sharing the mounts under " + directory, errno);
  }
  return Status::Ok();
}

Status CreateNamespace(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444));
  if (!file.ok()) return OsError("making " + path, errno);
  Status status = OnThread([&] { return MountNewNamespace(path); });
  if (!status.ok()) unlink(path.c_str());
  return status;
}

Result<UniqueFd> OpenNamespace(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.ok()) return OsError("opening the network namespace " + path, errno);
  return fd;
}

Status RemoveNamespace(const std::string& path) {
  EndProcessesIn(path);
  // More than one mount can lie on top of each other; the last umount fails with EINVAL.
  int mounts = 0;
  while (mounts < 16 && umount2(path.c_str(), MNT_DETACH) == 0) ++mounts;
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return OsError("removing " + path, errno);
  return Status::Ok();
}

Status RunInNamespace(int namespace_fd, const std::function<Status()>& work) {
  return OnThread([&] {
    if (setns(namespace_fd, CLONE_NEWNET) != 0) return OsError("entering a network namespace (setns)", errno);
    return work();
  });
}

std::vector<pid_t> ProcessesIn(const std::string& path) {
  std::vector<pid_t> found;
  struct stat wanted {};
  // A path that is only the empty file (unmounted) has no namespace, and no process can match its inode.
  if (stat(path.c_str(), &wanted) != 0) return found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (!std::ranges::all_of(name, [](unsigned char c) { return std::isdigit(c) != 0; })) continue;
    struct stat net {};
    if (stat((entry.path() / "ns/net").c_str(), &net) != 0) continue;
    const auto pid = static_cast<pid_t>(std::atoi(name.c_str()));
    if (net.st_ino == wanted.st_ino && net.st_dev == wanted.st_dev && pid != getpid()) found.push_back(pid);
  }
  return found;
}

}  // namespace longhaul::wan
