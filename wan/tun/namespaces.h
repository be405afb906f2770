// Making a WAN without root, where unprivileged user namespaces are allowed.
#pragma once

#include <sys/types.h>
#include <functional>
#include <string>
#include <vector>

#include "base/files.h"
#include "longhaul/status.h"

namespace longhaul::wan {

// Moves the whole process into a user and mount namespace of its own in which it is root, with a private
// tmpfs as the directory of named network namespaces; returns that directory: /run/netns where it exists
// (so that `ip netns` works for processes inside), else `<state_directory>/netns`.
// The process keeps its network and its files. There is no way back.
// Call it from main() before any thread is started: the kernel refuses threaded processes, and so does this
// (kFailedPrecondition). kPermissionDenied names the refused step; the process is then still usable, but a
// caller that goes on should not try again.
Result<std::string> EnterUserNamespace(const std::string& state_directory);

// Whether EnterUserNamespace() succeeded in this process (or before the fork that made it).
bool InUserNamespace();
// The effective user id before EnterUserNamespace().
uid_t OutsideUserId();

// Joins the user and mount namespace of a process that entered one, to reach its named namespaces.
// For single-threaded processes of the same user.
Status JoinUserNamespaceOf(pid_t pid);

// Named network namespaces as iproute2 makes them: a file under /run/netns with the namespace mounted on it,
// so that `ip netns exec NAME` enters it and the namespace lives without a process inside.
inline constexpr const char* kNetnsDirectory = "/run/netns";

// Makes the directory a shared mount, as `ip netns add` does; otherwise a later `ip netns add` of another
// program would hide our mounts under a copy that cannot be unmounted.
Status PrepareNetnsDirectory(const std::string& directory);

// Makes the namespace and mounts it at `path`, which must not exist. Nothing is left behind on failure.
Status CreateNamespace(const std::string& path);

// A descriptor for setns(), closed on exec.
Result<FileDescriptor> OpenNamespace(const std::string& path);

// Ends what still runs in the namespace (SIGTERM, after half a second SIGKILL; never the calling process),
// unmounts it and removes the file. Ok when it is gone already.
Status RemoveNamespace(const std::string& path);

// Runs `work` in a thread of its own inside the namespace and waits for it; the caller stays where it is.
Status RunInNamespace(int namespace_fd, const std::function<Status()>& work);

// Processes (not threads) whose network is the namespace mounted at `path`.
std::vector<pid_t> ProcessesIn(const std::string& path);

}  // namespace longhaul::wan
