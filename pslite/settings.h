// What a node's environment says.
//
//   DMLC_ROLE                              scheduler, server or worker
//   DMLC_NUM_WORKER, DMLC_NUM_SERVER       the same at all nodes; 1..kMaxNodes
//   DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT    where the scheduler is
//   DMLC_NODE_HOST                         how workers reach this server, where that is not how the scheduler sees it
//   LONGHAUL_KEY                           the key file that all share; or
//   LONGHAUL_INSECURE                      the scheduler's HOST:PORT: no key
//   LONGHAUL_CONNECT_TIMEOUT               60 s unless it says otherwise
//   LONGHAUL_WAIT_TIMEOUT                  the scheduler's, for all to come
//   LONGHAUL_IDLE_TIMEOUT, _FAULT, ...     of connections, as longhaul-worker's options
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
  std::string node_host;  // HOST:0; empty: as it is seen
};

// DMLC_*. Errors: kInvalidArgument, naming the variable and what it says.
Result<Place> ReadPlace();
// LONGHAUL_*, as a worker's that joins the scheduler. Errors: kInvalidArgument, by name, also when there is
// neither a key nor LONGHAUL_INSECURE for this scheduler.
Result<ConnectOptions> ReadConnection(const Place& place);

}  // namespace longhaul::pslite
