// What this machine, and the limits that this process runs under, have left for it.
#pragma once

#include <cstdint>
#include <string>

namespace longhaul::server {

// Bytes: the least of what the system says can be had without swapping (MemAvailable), what each of the
// process' control groups has left of memory.max, and what `ulimit -v` leaves of address space. 0: nothing is
// known; 1 when nothing is left. root: where /proc and /sys are, for tests.
uint64_t AvailableMemory(const std::string& root = "");

}  // namespace longhaul::server
