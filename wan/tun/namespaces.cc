#include "wan/tun/namespaces.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/files.h"
#include "wan/tun/process.h"

namespace longhaul::wan {
namespace {

// What the process was outside; a fact about the process, so it is one of the few globals.
std::optional<uid_t> g_outside_user;

size_t ThreadCount() {
  std::error_code error;
  size_t count = 0;
  for ([[maybe_unused]] const auto& task : std::filesystem::directory_iterator("/proc/self/task", error))
    ++count;
  return count;
}

Status WriteProcFile(const char* path, const std::string& text) {
  const FileDescriptor file(open(path, O_WRONLY | O_CLOEXEC));
  if (!file.valid() || write(file.get(), text.data(), text.size()) < 0) {
    return OsError(std::string("mapping this user to root (") + path + ")", errno);
  }
  return Status::Ok();
}

Status MapToRoot(uid_t uid, gid_t gid) {
  if (Status s = WriteProcFile("/proc/self/setgroups", "deny"); !s.ok()) return s;
  if (Status s = WriteProcFile("/proc/self/uid_map", "0 " + std::to_string(uid) + " 1"); !s.ok()) return s;
  return WriteProcFile("/proc/self/gid_map", "0 " + std::to_string(gid) + " 1");
}

Status MountPrivateDirectory(const std::string& directory) {
  if (mount("", "/", "none", MS_REC | MS_SLAVE, nullptr) != 0) {
    return OsError("detaching the mounts from the rest of the system", errno);
  }
  if (mount("longhaul-wan", directory.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, "mode=755") != 0) {
    return OsError("mounting a private tmpfs at " + directory, errno);
  }
  return Status::Ok();
}

}  // namespace

bool InUserNamespace() { return g_outside_user.has_value(); }

uid_t OutsideUserId() { return g_outside_user.value_or(geteuid()); }

Result<std::string> EnterUserNamespace(const std::string& state_directory) {
  if (ThreadCount() > 1) {
    return Status(StatusCode::kFailedPrecondition,
                  "a process with threads cannot enter a user namespace; do it first thing in main");
  }
  const uid_t uid = geteuid();
  const gid_t gid = getegid();
  std::string directory = kNetnsDirectory;
  if (access(kNetnsDirectory, F_OK) != 0) {
    directory = state_directory + "/netns";
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    if (error) return OsError("making " + directory, error.value());
  }
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
    return OsError("creating a user namespace (unshare CLONE_NEWUSER)", errno);
  }
  g_outside_user = uid;
  if (Status s = MapToRoot(uid, gid); !s.ok()) return s;
  if (Status s = MountPrivateDirectory(directory); !s.ok()) return s;
  return directory;
}

Status JoinUserNamespaceOf(pid_t pid) {
  const std::string base = "/proc/" + std::to_string(pid) + "/ns/";
  const FileDescriptor user(open((base + "user").c_str(), O_RDONLY | O_CLOEXEC));
  const FileDescriptor mounts(open((base + "mnt").c_str(), O_RDONLY | O_CLOEXEC));
  if (!user.valid() || !mounts.valid())
    return OsError("opening the user namespace of process " + std::to_string(pid), errno);
  if (setns(user.get(), CLONE_NEWUSER) != 0) return OsError("entering the run's user namespace", errno);
  std::error_code ignored;  // entering leads to the root of the mounts: back to where the caller was
  const auto here = std::filesystem::current_path(ignored);
  if (setns(mounts.get(), CLONE_NEWNS) != 0) return OsError("entering the run's mount namespace", errno);
  std::filesystem::current_path(here, ignored);
  return Status::Ok();
}

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
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444));
  if (!file.valid()) return OsError("making " + path, errno);
  Status status = OnThread([&] { return MountNewNamespace(path); });
  if (!status.ok()) unlink(path.c_str());
  return status;
}

Result<FileDescriptor> OpenNamespace(const std::string& path) {
  FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return OsError("opening the network namespace " + path, errno);
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
