// A rank of a site: what it pushes is added to what the site's other ranks push, and crosses the WAN with it
// (site_relay.h). One thread: what the relay says, and copies between the caller's memory and the device's.
//
// When not: a machine with one worker; that one is better served by a connection of its own.
#pragma once

#include <memory>

#include "worker/client/client_impl.h"

namespace longhaul::internal {

// Errors: kUnavailable (no daemon there, or none with --server), kAlreadyExists (the rank is taken),
// kResourceExhausted (all ranks are), those of Device::Open, and why the relay has failed. REQUIRES:
// CheckOptions(options) is Ok.
Result<std::shared_ptr<ClientImpl>> ConnectToSite(const ConnectOptions& options);

}  // namespace longhaul::internal
