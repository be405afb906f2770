// Named network namespaces as iproute2 makes them: a file under /run/netns with the namespace mounted on it,
// so that `ip netns exec NAME` enters it and the namespace lives without a process inside.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "longhaul/status.h"
#include "wan/tun/unique_fd.h"

namespace longhaul::wan {

inline constexpr const char* kNetnsDirectory = "/run/netns";

// Makes the directory a shared mount, as `ip netns add` does; otherwise a later `ip netns add` of somebody
// else would hide our mounts under a copy that nobody can unmount.
Status PrepareNetnsDirectory(const std::string& directory);

// Makes the namespace and mounts it at `path`, which must not exist. Nothing is left behind on failure.
Status CreateNamespace(const std::string& path);

// A descriptor for setns(), closed on exec.
Result<UniqueFd> OpenNamespace(const std::string& path);

// Ends what still runs in the namespace (SIGTERM, after half a second SIGKILL; never the calling process),
// unmounts it and removes the file. Ok when it is gone already.
Status RemoveNamespace(const std::string& path);

// Runs `work` in a thread of its own inside the namespace and waits for it; the caller stays where it is.
Status RunInNamespace(int namespace_fd, const std::function<Status()>& work);

// Processes (not threads) whose network is the namespace mounted at `path`.
std::vector<pid_t> ProcessesIn(const std::string& path);

}  // namespace longhaul::wan
