// A worker of a job with one or more servers: of several it has a ServerClient each, cuts tensors by
// base/placement.h and puts together what comes back (decision 0029).
//
//   Client --> ShardedClient --> ServerClient 0 (first: rank, barriers) --> server 0
//                            \-> ServerClient 1 ...                     --> server 1
//
// Each has its own thread and its own rate controller: what is encoded and sealed for one server does not
// wait for what is for another, and a worker with a link as wide as all of the servers' has as many cores at
// work as it needs. An operation is over when all its parts are; the first error counts. When one server is
// lost for good, the worker leaves the others with its reason.
#pragma once

#include <memory>

#include "worker/client/client_impl.h"

namespace longhaul::internal {

// To the job that `options.servers` is a server of, whichever. Errors as of Client::Connect. REQUIRES:
// CheckOptions(options) is Ok.
Result<std::shared_ptr<ClientImpl>> ConnectToServers(const ConnectOptions& options);

}  // namespace longhaul::internal
