// A job of real daemons under faults that never end: kill -9 of members and of servers, SIGSTOP, links that
// are cut both ways or one way, hosts that change their address, a full disk. At the end the parameters are
// compared with what the members know of their pushes: each that was acknowledged counts in its round, once,
// and none that was never begun.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "longhaul/status.h"

namespace longhaul::bench::faults {

struct ChaosOptions {
  double minutes = 10;
  uint64_t seed = 1;
  uint32_t workers = 4;  // 3 or 4 (ledger.h)
  uint32_t servers = 1;
  std::string only = {};  // faults whose name contains this
  bool verbose = false;
};

// With "miss": why it is not as it has to be, one text each. Errors: the job cannot be started.
Result<nlohmann::json> RunChaos(const ChaosOptions& options);

}  // namespace longhaul::bench::faults
