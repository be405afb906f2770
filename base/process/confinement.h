// What a daemon still may ask of the kernel once it has started (seccomp): files, its UDP sockets, its clocks
// and its threads. Nothing that starts programs, looks into other processes, or changes users, mounts or the
// kernel.
#pragma once

#include <cstdint>

#include "longhaul/status.h"

namespace longhaul::process {

enum class Confinement : uint8_t {
  // Its sockets are UDP ones.
  kServer,
  // Also looks up host names: connections to name servers and to the name service's cache.
  kWorker,
  // Its peers are processes of this machine: takes connections, shares memory, learns of a peer's end.
  kOffload,
  // That, and the site's worker: both of the above.
  kSite,
};

// takes_connections: of a port that listens already (--metrics). For this process and all of its threads,
// from now to its end. A system call that no daemon needs fails with ENOSYS, as on a kernel that does not
// have it; one of those that an intruder wants (execve, ptrace, mount,
// ...) ends the process with SIGSYS. Errors: kUnavailable: this kernel or this build has no seccomp; nothing
// is changed then. Under a sanitizer, which needs such calls, it is such a build.
Status Confine(Confinement role, bool takes_connections = false);

}  // namespace longhaul::process
