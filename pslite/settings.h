// What a node's environment says (include/ps/internal/postoffice.h).
#pragma once

#include <cstdint>
#include <string>

#include "longhaul/options.h"
#include "longhaul/status.h"
#include "pslite/message.h"

namespace longhaul::pslite {

struct Place {
  Role role = Role::kWorker;
  uint32_t workers = 0;
  uint32_t servers = 0;
  std::string scheduler;  // HOST:PORT
  std::string node_host;  // empty: as it is seen
};

// DMLC_*. Errors: kInvalidArgument, naming the variable and what it says.
Result<Place> ReadPlace();
// LONGHAUL_*, as a worker's that joins the scheduler. Errors: kInvalidArgument, by name, also when there is
// neither a key nor LONGHAUL_INSECURE for this scheduler.
Result<ConnectOptions> ReadConnection(const Place& place);

}  // namespace longhaul::pslite
