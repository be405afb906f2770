#include "transport/keys/core_dumps.h"

#include <sys/resource.h>

#include <algorithm>

namespace longhaul::keys {

// One byte, not none: for a file both are less than the kernel writes at all, but the limit of a program that
// dumps are piped to is only looked at when it is exactly 1 (Linux, fs/coredump.c).
void ForbidCoreDumps() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_CORE, &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(1, limit.rlim_max);
  (void)::setrlimit(RLIMIT_CORE, &limit);
}

}  // namespace longhaul::keys
