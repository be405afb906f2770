#include "wan/tun/user_namespace.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>

#include "wan/tun/os_error.h"
#include "wan/tun/site_namespace.h"
#include "wan/tun/unique_fd.h"

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
  const UniqueFd file(open(path, O_WRONLY | O_CLOEXEC));
  if (!file.ok() || write(file.get(), text.data(), text.size()) < 0) {
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
  const UniqueFd user(open((base + "user").c_str(), O_RDONLY | O_CLOEXEC));
  const UniqueFd mounts(open((base + "mnt").c_str(), O_RDONLY | O_CLOEXEC));
  if (!user.ok() || !mounts.ok())
    return OsError("opening the user namespace of process " + std::to_string(pid), errno);
  if (setns(user.get(), CLONE_NEWUSER) != 0) return OsError("entering the run's user namespace", errno);
  if (setns(mounts.get(), CLONE_NEWNS) != 0) return OsError("entering the run's mount namespace", errno);
  return Status::Ok();
}

}  // namespace longhaul::wan
