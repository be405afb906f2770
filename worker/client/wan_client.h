// A worker with its own connection to the parameter server: a WorkerCore in a thread with a socket.
#pragma once

#include <memory>

#include "worker/client/client_impl.h"

namespace longhaul::internal {

// Errors as of Client::Connect. REQUIRES: CheckOptions(options) is Ok.
Result<std::shared_ptr<ClientImpl>> ConnectToServer(const ConnectOptions& options);

}  // namespace longhaul::internal
