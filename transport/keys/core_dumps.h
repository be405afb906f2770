// A core dump is a copy of a process' memory in a file that lies around, is collected, and is sent to others;
// the keys of a process that has some are in it.
#pragma once

namespace longhaul::keys {

// From here on this process and those that it starts leave no core dump, neither as a file nor through a
// program that the kernel hands it to. Only the soft limit (RLIMIT_CORE) changes: `prlimit --core=unlimited
// --pid` takes it back. Debuggers are left alone: whoever may attach one can read the key file as well.
void ForbidCoreDumps();

}  // namespace longhaul::keys
