// A whole job over the loopback interface, in a process of its own.
#pragma once

#include <cstdint>
#include <string>

#include "tests/exhaustion/fail_nth.h"

namespace longhaul::exhaustion {

struct Ending {
  bool struck = false;    // the n-th was reached, and failed
  bool finished = false;  // every step of the job was Ok, and its values right
  bool crashed = false;   // the process died of a signal, or did not end within 30 s
  std::string text;       // the Status that ended it, or the signal
};

// Connect, Declare, PushPull twice, Pull, Leave, of one worker with an embedded server, while the n-th fails.
Ending RunJob(What what, uint64_t n);

}  // namespace longhaul::exhaustion
