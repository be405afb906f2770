// The one clock of longhaul: everything below this folder is handed the time as an argument.
#pragma once

#include "base/instant.h"

namespace longhaul::udp {

// Nanoseconds of CLOCK_MONOTONIC. Never goes back; any thread.
Instant Now();

}  // namespace longhaul::udp
