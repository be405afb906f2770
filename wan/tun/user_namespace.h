// Making a WAN without root, where unprivileged user namespaces are allowed.
#pragma once

#include <sys/types.h>

#include <string>

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

}  // namespace longhaul::wan
