// longhaul from site B to site A: the real longhaul-server and one or more `longhaul bench flow`.
#pragma once

#include "bench/wan/cell.h"

namespace longhaul::bench {

// Fills the outcome but for the link's part. `series`: seconds between the points of a time series; 0 = none.
void RunLonghaul(wan::TunWan* wan, const Runner& runner, const Timing& timing, double series,
                 const std::vector<std::string>& more_flags, Outcome* outcome);

struct IncastOptions {
  int workers = 8;
  std::string bytes = "1mb";  // of each worker's gradient
  int rounds = 10;
  std::vector<std::string> server_flags;
  bool insecure = false;
};
// A real job: in every round all workers push their gradient at the same moment, everything high. Fills the
// outcome but for the link's part; details: "push_ms" by round and worker.
void RunIncast(wan::TunWan* wan, const IncastOptions& options, Outcome* outcome);

}  // namespace longhaul::bench
