// What tells a server from all others that have the same key, and is the same after it was restarted.
#pragma once

#include <string>

#include "base/address.h"

namespace longhaul::keys {

// The machine's id (machine-id(5), where there is one), its host name, and where the server listens: the
// address that its socket has, with the real port. For TlsOptions::server_name, where it only meets keyed
// hashes; machine-id(5) asks for that.
std::string ServerName(const Address& listen);

}  // namespace longhaul::keys
