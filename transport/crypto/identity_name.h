// The name in a certificate: the URI longhaul://JOB/ROLE/NAME as its subject alternative name.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "longhaul/status.h"
#include "transport/core/security.h"

namespace longhaul::crypto {

enum class Role : uint8_t { kServer, kWorker, kTool };
// "server", "worker" or "tool".
std::string_view RoleName(Role role);
std::optional<Role> ParseRole(std::string_view name);

// Jobs and names that a key can be for: 1..64 of A-Z a-z 0-9 . _ -. kInvalidArgument calls the value by
// `what`.
Status CheckKeyName(std::string_view what, std::string_view value);

std::string IdentityUri(std::string_view job, Role role, std::string_view name);
// nullopt when it is not exactly such a URI.
std::optional<transport::PeerIdentity> ParseIdentityUri(std::string_view uri);

}  // namespace longhaul::crypto
